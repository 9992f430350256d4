package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

func TestInject(t *testing.T) {
	run := func(stdin string, args ...string) (out, notes string, err error) {
		var o, e bytes.Buffer
		root := newRoot()
		root.SetIn(strings.NewReader(stdin))
		root.SetOut(&o)
		root.SetErr(&e)
		root.SetArgs(append([]string{"inject"}, args...))
		err = root.Execute()
		return o.String(), e.String(), err
	}
	const pod = "kind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: app}]}\n"
	out, notes, err := run(pod, "-f", "-", "--release", "limits", "--image", "x:1", "--no-tls", "--arg", "--no-hot")
	if err != nil || !strings.Contains(notes, "Pod a: sidecar added") {
		t.Fatalf("%v, %s", err, notes)
	}
	for _, want := range []string{"keyward.io/member: limits", `image: "x:1"`, "name: limits-member", "--no-hot"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %s in\n%s", want, out)
		}
	}
	if strings.Contains(out, "keyward-tls") {
		t.Errorf("certificates in spite of --no-tls:\n%s", out)
	}
	file := t.TempDir() + "/config.yaml"
	if err := os.WriteFile(file, []byte("kind: ConfigMap\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, notes, err := run("", "-f", file); err != nil || out != "kind: ConfigMap\n" || !strings.Contains(notes, "nothing in it has pods") {
		t.Errorf("nothing to do: %q, %q, %v", out, notes, err)
	}
	for _, args := range [][]string{{}, {"-f", file + "x"}, {"-f", "-", "--memory", "much"}} {
		if _, _, err := run(pod, args...); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}
