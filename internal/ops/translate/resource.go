package translate

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"

	yaml "go.yaml.in/yaml/v3"

	"github.com/keyward/keyward/internal/config"
)

// object is a resource in a file.
type object struct {
	group, version, kind string
	namespace, name      string
	labels               map[string]string
	created              string // creationTimestamp
	field                       // the complete resource
}

// id returns namespace/name.
func (o *object) id() string { return o.namespace + "/" + o.name }

// is reports whether the object is of a kind.
func (o *object) is(group, kind string) bool { return o.group == group && o.kind == kind }

// spec returns the field spec.
func (o *object) spec() field { return o.open().get("spec") }

// readObjects returns the resources of a file: those of all documents and lists, in their order.
func (r *reader) readObjects(f config.File) []*object {
	var all []*object
	dec := yaml.NewDecoder(bytes.NewReader(f.Content))
	for {
		doc, err := decode(dec)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			r.add(config.Diagnostic{Kind: Invalid, File: f.Name, Line: lineOf(err), Text: err.Error()})
			return all
		}
		if len(doc.Content) == 1 {
			root := field{from: r, file: f.Name, line: doc.Content[0].Line, node: resolve(doc.Content[0])}
			all = r.addObjects(all, root, 0)
		}
	}
}

// policyKinds are the kinds of policies that Translate reads, and of what they refer to, with their API groups.
var policyKinds = map[string]string{
	"BackendTrafficPolicy": egGroup, "HTTPRouteFilter": egGroup,
	"RateLimitPolicy": kuadrantGroup, "TokenRateLimitPolicy": kuadrantGroup,
	"HTTPProxy": contourGroup, "ContourConfiguration": contourGroup, "ContourDeployment": contourGroup,
	"TrafficPolicy": kgatewayGroup, "GatewayExtension": kgatewayGroup, "RateLimitConfig": soloGroup,
}

// checkObjects adds findings about policies of another API whose kind has the name of one that is read, and about
// resources that are in the files twice.
func (t *translation) checkObjects() {
	type id struct{ group, kind, namespace, name string }
	seen := map[id]*object{}
	for _, o := range t.objects {
		group, policy := policyKinds[o.kind]
		switch {
		case !policy && o.group != gatewayGroup:
			continue
		case policy && o.group != group:
			o.report(NoCounterpart, "", fmt.Sprintf("a %s of %s is not read, only one of %s", o.kind, cmp.Or(o.group, "no API group"), group))
			continue
		case o.name == "":
			continue // of a template
		}
		key := id{o.group, o.kind, o.namespace, o.name}
		if first := seen[key]; first != nil {
			o.report(Invalid, "translate one of the two alone", fmt.Sprintf("the resource is in the files twice: first in %s:%d", first.file, first.line))
			continue
		}
		seen[key] = o
	}
}

// decode reads the next document. A panic of the parser is an error.
func decode(dec *yaml.Decoder) (n *yaml.Node, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("yaml: %v", v)
		}
	}()
	n = new(yaml.Node)
	return n, dec.Decode(n)
}

// lineOf returns the line number in a message of the YAML parser, or 0.
func lineOf(err error) int {
	line := 0
	if _, rest, found := strings.Cut(err.Error(), "line "); found {
		_, _ = fmt.Sscanf(rest, "%d", &line) // 0 if there is no number
	}
	return line
}

// addObjects adds the resource at root, or those of the list at root.
func (r *reader) addObjects(all []*object, root field, depth int) []*object {
	switch {
	case root.node == nil || root.node.Tag == "!!null":
		return all // an empty document
	case root.node.Kind != yaml.MappingNode:
		root.report(Invalid, "put each resource into a document of its own", "want a resource, not "+describe(root.node))
		return all
	case depth > 10:
		root.report(Invalid, "write the resources as documents", "lists are nested too deeply")
		return all
	}
	top := root.open()
	kind := top.get("kind").text()
	if items := top.get("items"); items.exists() && (kind == "" || strings.HasSuffix(kind, "List")) {
		for _, item := range items.items() {
			item.path = ""
			all = r.addObjects(all, item, depth+1)
		}
		return all
	}
	o := &object{kind: kind, field: root, labels: map[string]string{}}
	if kind == "" {
		root.report(Invalid, "", "a resource without kind, which is not read")
	}
	o.group, o.version, _ = strings.Cut(top.get("apiVersion").text(), "/")
	meta := top.get("metadata").open()
	o.name, o.namespace = meta.get("name").text(), meta.get("namespace").text()
	if o.namespace == "" {
		o.namespace = "default"
	}
	o.created = meta.get("creationTimestamp").text()
	labels := meta.get("labels").open()
	for _, k := range labels.keys {
		o.labels[k] = labels.values[k].text()
	}
	o.rule = strings.TrimSpace(kind + " " + o.id())
	return append(all, o)
}
