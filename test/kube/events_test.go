package kube

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// event is the start or the end of a container.
type event struct {
	container string
	at        time.Time
	status    int
}

type eventList []event

func (l eventList) names() (names []string) {
	for _, e := range l {
		names = append(names, e.container)
	}
	return names
}

func (l eventList) String() string {
	var text []string
	for _, e := range l {
		text = append(text, fmt.Sprintf("%s %.2f s", e.container, e.at.Sub(l[0].at).Seconds()))
	}
	return strings.Join(text, ", ")
}

// events returns containerd's events of this topic about the pod's containers, the earliest first. `ctr events` has recorded them since the start.
func events(t testing.TB, p object, topic string) eventList {
	t.Helper()
	f, err := os.Open(file("servers", "events.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var list eventList
	for lines := bufio.NewScanner(f); lines.Scan(); {
		head, body, ok := strings.Cut(lines.Text(), topic+" ")
		if !ok {
			continue
		}
		var said struct {
			ContainerID string `json:"container_id"`
			ID          string // of the process: another one than the container's for a hook
			ExitStatus  int    `json:"exit_status"`
		}
		at, err := time.Parse("2006-01-02 15:04:05.999999999 -0700 MST", strings.TrimSuffix(strings.TrimSpace(head), " k8s.io"))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(body), &said); err != nil {
			t.Fatal(err)
		}
		for _, c := range p.containers() {
			if c.id() == said.ContainerID && (said.ID == "" || said.ID == said.ContainerID) {
				list = append(list, event{c.Name, at, said.ExitStatus})
			}
		}
	}
	return list
}
