package mirror

import (
	"strings"
	"testing"
	"time"
)

func TestTextSaysWhatDiffers(t *testing.T) {
	s := Totals{Since: time.Unix(0, 0).UTC(), FellBack: 3, Compared: 10, Same: 8}
	s.Old.LastError, s.New.LastError = "old is away", "new is away"
	s.Differences = map[Class]uint64{classes()[0]: 2}
	s.NotCompared = map[reason]uint64{reasons()[0]: 4}
	var b strings.Builder
	if err := s.Text(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"1970-01-01T00:00:00Z", "old is away", "new is away", meanings()[classes()[0]],
		"not compared: " + strings.ReplaceAll(string(reasons()[0]), "_", " "), "because the new one failed",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not said:\n%s", want, &b)
		}
	}
}
