package e2e

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// faultFS is a file system with faults that a test switches on. Everything else is done by a real one.
type faultFS struct {
	dir     string // where it is mounted
	backing string

	sync, write, create, allocate atomic.Int32 // the errno of these operations; 0: they work
	torn                          atomic.Bool  // a write that fails has written a half
	stalled                       atomic.Pointer[chan struct{}]
}

// mountFaultFS mounts a faultFS until the test ends.
func mountFaultFS(t *testing.T) *faultFS {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to mount a file system")
	}
	f := &faultFS{dir: filepath.Join(tempDir(t), "mnt"), backing: filepath.Join(tempDir(t), "backing")}
	for _, d := range []string{f.dir, f.backing} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var st syscall.Stat_t
	if err := syscall.Stat(f.backing, &st); err != nil {
		t.Fatal(err)
	}
	root := &fs.LoopbackRoot{Path: f.backing, Dev: st.Dev}
	root.RootNode = &faultNode{&fs.LoopbackNode{RootData: root}, f}
	server, err := fs.Mount(f.dir, root.RootNode, &fs.Options{MountOptions: fuse.MountOptions{DirectMount: true, FsName: "faults"}})
	if err != nil {
		t.Fatalf("mount a FUSE file system: %v", err)
	}
	t.Cleanup(func() { // runs before the lab has stopped its processes, if that was made earlier
		f.resume()
		if err := server.Unmount(); err != nil {
			_ = syscall.Unmount(f.dir, syscall.MNT_DETACH)
		}
	})
	return f
}

// stall makes every sync wait until resume.
func (f *faultFS) stall() {
	c := make(chan struct{})
	f.stalled.Store(&c)
}

// resume ends a stall.
func (f *faultFS) resume() {
	if c := f.stalled.Swap(nil); c != nil {
		close(*c)
	}
}

// heal ends all faults.
func (f *faultFS) heal() {
	for _, x := range []*atomic.Int32{&f.sync, &f.write, &f.create, &f.allocate} {
		x.Store(0)
	}
	f.torn.Store(false)
	f.resume()
}

// faultNode is a file or directory of a faultFS.
type faultNode struct {
	*fs.LoopbackNode
	faults *faultFS
}

var (
	_ fs.NodeCreater     = (*faultNode)(nil)
	_ fs.NodeMkdirer     = (*faultNode)(nil)
	_ fs.FileWriter      = (*faultFile)(nil)
	_ fs.FileFsyncer     = (*faultFile)(nil)
	_ fs.FileAllocater   = (*faultFile)(nil)
	_ fs.NodeWrapChilder = (*faultNode)(nil)
)

// WrapChild implements fs.NodeWrapChilder.
func (n *faultNode) WrapChild(_ context.Context, ops fs.InodeEmbedder) fs.InodeEmbedder {
	if x, ok := ops.(*fs.LoopbackNode); ok {
		return &faultNode{x, n.faults}
	}
	return ops
}

// Create implements fs.NodeCreater.
func (n *faultNode) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (
	*fs.Inode, fs.FileHandle, uint32, syscall.Errno,
) {
	if e := n.faults.create.Load(); e != 0 {
		return nil, nil, 0, syscall.Errno(e)
	}
	inode, h, fl, errno := n.LoopbackNode.Create(ctx, name, flags, mode, out)
	if x, ok := h.(*fs.LoopbackFile); ok {
		h = &faultFile{x, n.faults}
	}
	return inode, h, fl, errno
}

// Mkdir implements fs.NodeMkdirer.
func (n *faultNode) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if e := n.faults.create.Load(); e != 0 {
		return nil, syscall.Errno(e)
	}
	return n.LoopbackNode.Mkdir(ctx, name, mode, out)
}

// faultFile is a file that is open for writing.
type faultFile struct {
	*fs.LoopbackFile
	faults *faultFS
}

// PassthroughFd makes the kernel ask this process for every operation.
func (f *faultFile) PassthroughFd() (int, bool) { return 0, false }

// Write implements fs.FileWriter.
func (f *faultFile) Write(ctx context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	if e := f.faults.write.Load(); e != 0 {
		if f.faults.torn.Load() {
			_, _ = f.LoopbackFile.Write(ctx, data[:len(data)/2], off)
		}
		return 0, syscall.Errno(e)
	}
	return f.LoopbackFile.Write(ctx, data, off)
}

// Fsync implements fs.FileFsyncer.
func (f *faultFile) Fsync(ctx context.Context, flags uint32) syscall.Errno {
	if c := f.faults.stalled.Load(); c != nil {
		<-*c
	}
	if e := f.faults.sync.Load(); e != 0 {
		return syscall.Errno(e)
	}
	return f.LoopbackFile.Fsync(ctx, flags)
}

// Allocate implements fs.FileAllocater.
func (f *faultFile) Allocate(ctx context.Context, off, size uint64, mode uint32) syscall.Errno {
	if e := f.faults.allocate.Load(); e != 0 {
		return syscall.Errno(e)
	}
	return f.LoopbackFile.Allocate(ctx, off, size, mode)
}
