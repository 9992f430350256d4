package holds

import (
	"context"
	"flag"
	"os"
	"testing"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/linker"
	"google.golang.org/protobuf/cmd/protoc-gen-go/internal_gengo"
	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"

	_ "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3" // what the protos import
)

var update = flag.Bool("update", false, "write the generated Go code and the reference of the API")

// compile compiles a file below proto. What it imports comes from the packages that are linked in.
func compile(t *testing.T, file string) linker.File {
	t.Helper()
	linked := protocompile.ResolverFunc(func(path string) (protocompile.SearchResult, error) {
		fd, err := protoregistry.GlobalFiles.FindFileByPath(path)
		if err != nil || path == file {
			return protocompile.SearchResult{}, protoregistry.NotFound
		}
		return protocompile.SearchResult{Desc: fd}, nil
	})
	c := protocompile.Compiler{
		Resolver:       protocompile.CompositeResolver{&protocompile.SourceResolver{ImportPaths: []string{"proto"}}, linked},
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	files, err := c.Compile(context.Background(), file)
	if err != nil {
		t.Fatal(err)
	}
	return files[0]
}

// withImports returns the descriptors of fd and of all that it imports, imports first.
func withImports(fd protoreflect.FileDescriptor) (all []*descriptorpb.FileDescriptorProto) {
	seen := map[string]bool{}
	var visit func(protoreflect.FileDescriptor)
	visit = func(fd protoreflect.FileDescriptor) {
		if seen[fd.Path()] {
			return
		}
		seen[fd.Path()] = true
		for i := range fd.Imports().Len() {
			visit(fd.Imports().Get(i).FileDescriptor)
		}
		all = append(all, protodesc.ToFileDescriptorProto(fd))
	}
	visit(fd)
	return all
}

// The Go code of the protos is that which protoc-gen-go generates from them. Run with -update after a change.
func TestGeneratedCode(t *testing.T) {
	const module = "github.com/keyward/keyward/envoy/holds"
	for _, file := range []string{holdsProto, "kuadrantrls.proto"} {
		fd := compile(t, file)
		request := &pluginpb.CodeGeneratorRequest{
			FileToGenerate: []string{file}, Parameter: proto.String("module=" + module), ProtoFile: withImports(fd),
		}
		plugin, err := protogen.Options{}.New(request)
		if err != nil {
			t.Fatal(err)
		}
		internal_gengo.GenerateFile(plugin, plugin.FilesByPath[file])
		for _, f := range plugin.Response().GetFile() {
			compareFile(t, f.GetName(), f.GetContent())
		}
	}
}

const holdsProto = "keyward/v1/holds.proto"

func compareFile(t *testing.T, path, want string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is out of date: go test ./envoy/holds -update", path)
	}
}
