package admin

import (
	"fmt"
	"sync"
	"testing"

	"github.com/keyward/keyward/internal/api"
)

func TestTimelineForgetsTheOldestOfTheMostFrequentKind(t *testing.T) {
	var l Timeline
	l.Add(api.TimelineEvent{Kind: api.RingEvent, Text: "first ring"})
	for i := range Events + 50 {
		l.Add(api.TimelineEvent{Kind: api.HotEvent, Text: fmt.Sprint(i)})
	}
	l.Add(api.TimelineEvent{Kind: api.RulesEvent, Text: "rules"})
	got := l.Events()
	if len(got) != Events || got[0].Text != "rules" || got[1].Text != fmt.Sprint(Events+49) {
		t.Fatalf("%d events, newest %+v %+v", len(got), got[0], got[1])
	}
	if last := got[Events-1]; last.Text != "first ring" {
		t.Errorf("the ring's event was forgotten: %+v", last)
	}
	if oldest := got[Events-2]; oldest.Text != "52" { // 250 keys, of which 198 have room next to the two others
		t.Errorf("oldest key: %+v", oldest)
	}
	got[0].Text = "changed"
	if l.Events()[0].Text != "rules" {
		t.Error("what Events gave is the timeline's own")
	}
}

func TestTimelineByMany(t *testing.T) {
	var l Timeline
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 100 {
				l.Add(api.TimelineEvent{Kind: api.HotEvent})
				l.Events()
			}
		})
	}
	all.Wait()
	if n := len(l.Events()); n != Events {
		t.Errorf("%d events", n)
	}
}
