package holds

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// The reference in the manual is that of the comments in the .proto file. Run with -update after a change.
func TestReference(t *testing.T) {
	const page, begin, end = "../../docs/holds-api.md", "<!-- proto -->\n", "<!-- /proto -->"
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(b), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the reference", page)
	}
	compareFile(t, page, before+begin+reference(t)+end+after)
}

func reference(t *testing.T) string {
	fd := compile(t, holdsProto)
	var b strings.Builder
	services := fd.Services()
	for i := range services.Len() {
		s := services.Get(i)
		fmt.Fprintf(&b, "### %s\n\n%s\n\n", s.FullName(), comment(t, s))
		for j := range s.Methods().Len() {
			m := s.Methods().Get(j)
			stream := ""
			if m.IsStreamingServer() {
				stream = "stream "
			}
			fmt.Fprintf(&b, "* **%s**(%s) returns (%s%s). %s\n", m.Name(), m.Input().Name(), stream, m.Output().Name(), comment(t, m))
		}
		b.WriteString("\n")
	}
	messages := fd.Messages()
	for i := range messages.Len() {
		m := messages.Get(i)
		fmt.Fprintf(&b, "### %s\n\n", m.Name())
		if text := fd.SourceLocations().ByDescriptor(m).LeadingComments; text != "" {
			fmt.Fprintf(&b, "%s\n\n", comment(t, m))
		}
		b.WriteString("| field | number | type | meaning |\n|---|---|---|---|\n")
		for j := range m.Fields().Len() {
			f := m.Fields().Get(j)
			fmt.Fprintf(&b, "| `%s` | %d | %s | %s |\n", f.Name(), f.Number(), fieldType(f), comment(t, f))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// comment returns the comment of d in one line. Everything but the fields of Entry has one.
func comment(t *testing.T, d protoreflect.Descriptor) string {
	t.Helper()
	text := strings.Join(strings.Fields(d.ParentFile().SourceLocations().ByDescriptor(d).LeadingComments), " ")
	if text == "" && d.Parent().Name() != "Entry" {
		t.Errorf("%s has no comment", d.FullName())
	}
	return text
}

func fieldType(f protoreflect.FieldDescriptor) string {
	text := f.Kind().String()
	if m := f.Message(); m != nil {
		text = string(m.Name())
	}
	switch {
	case f.IsList():
		return "repeated " + text
	case f.HasOptionalKeyword():
		return "optional " + text
	}
	return text
}
