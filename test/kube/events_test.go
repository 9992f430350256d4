package kube

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

func (p object) containers() []containerStatus {
	return slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses)
}

func (p object) restarts(name string) int {
	for _, c := range p.containers() {
		if c.Name == name {
			return c.RestartCount
		}
	}
	return -1
}

func (p object) ready() bool {
	return !slices.ContainsFunc(p.containers(), func(c containerStatus) bool { return !c.Ready })
}

// id is the container's name in containerd.
func (c containerStatus) id() string { return strings.TrimPrefix(c.ContainerID, "containerd://") }

// oneOf is a pod with these labels.
func (r *release) oneOf(t testing.TB, labels string) object {
	t.Helper()
	list, err := pods(t.Context(), r.namespace, labels)
	if err != nil || len(list) == 0 {
		t.Fatalf("pods with %s: %d, %v", labels, len(list), err)
	}
	return list[0]
}

// eventually waits until a pod of the release is so.
func (r *release) eventually(t testing.TB, what, name string, so func(object) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := await(ctx, what, func(ctx context.Context) error {
		list, err := pods(ctx, r.namespace, "")
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(list, func(p object) bool { return p.Metadata.Name == name && so(p) }) {
			return fmt.Errorf("pods: %+v", list)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

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

// events is what containerd told of the pod's containers under this topic, the earliest first: `ctr events` has written it down since the start.
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
