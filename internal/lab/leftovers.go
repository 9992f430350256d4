package lab

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// Processes and folders must end with this process, however it ends: killed, its terminal closed, out of memory. Two
// mechanisms ensure this.
//
//   - On Linux each child is killed by the kernel when the thread that started it ends (see onLastingThread).
//   - A shell in a session of its own reads a pipe that this process alone can write to. When the pipe is closed it kills the process
//     groups that it was given and removes the folders. Only it removes folders, and it is the only mechanism on other systems.

// cleaner is the shell's script. It reads lines of a sign and a word: + a process, - one that has ended, / a folder.
const cleaner = `
processes=" "
while IFS= read -r line; do
  word=${line#?}
  case $line in
  +*) processes="$processes$word " ;;
  -*) case $processes in *" $word "*) processes="${processes%%" $word "*} ${processes#*" $word "}" ;; esac ;;
  /*) set -- "$@" "$line" ;;
  esac
done
for p in $processes; do kill -s KILL -- "-$p" 2>/dev/null; done
for folder; do
  tries=0 # a process killed a moment ago may still write there
  while [ -e "$folder" ] && [ $tries -lt 50 ]; do
    rm -rf -- "$folder" 2>/dev/null || sleep 0.1
    tries=$((tries + 1))
  done
done
`

// watcher is a shell that cleans up after this process has ended. The zero value is ready for use. Its methods are
// safe for concurrent use.
type watcher struct {
	mu  sync.Mutex
	cmd *exec.Cmd // guarded by mu; nil: none runs
	in  *os.File  // guarded by mu
}

// leftovers is the watcher of all processes and folders of this process.
var leftovers watcher

// say sends one line to the shell and starts it if necessary.
func (w *watcher) say(line string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cmd == nil {
		if err := w.startLocked(cleaner); err != nil {
			return err
		}
	}
	_, err := w.in.WriteString(line + "\n")
	return err
}

// know registers the group of a process to be killed.
func (w *watcher) know(pid int) error { return w.say("+" + strconv.Itoa(pid)) }

// forget undoes know after the process has ended.
func (w *watcher) forget(pid int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cmd != nil {
		_, _ = fmt.Fprintf(w.in, "-%d\n", pid) // an error means that there is no shell that could kill it
	}
}

// start starts the shell with another script.
func (w *watcher) start(script string, args ...string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.startLocked(script, args...)
}

// startLocked starts a shell whose input ends when this process does.
func (w *watcher) startLocked(script string, args ...string) error {
	out, in, err := os.Pipe() // no child inherits it
	if err != nil {
		return fmt.Errorf("watch over what is started: %w", err)
	}
	defer out.Close()
	cmd := exec.Command("sh", append([]string{"-c", script, "sh"}, args...)...)
	cmd.Stdin, cmd.Dir = out, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // it must survive signals to this process's group and terminal
	if err := cmd.Start(); err != nil {
		in.Close()
		return fmt.Errorf("watch over what is started: %w", err)
	}
	w.cmd, w.in = cmd, in
	return nil
}

// end makes the shell clean up now and waits for it.
func (w *watcher) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cmd == nil {
		return
	}
	w.in.Close()
	_ = w.cmd.Wait() // its status is that of its last command
	w.cmd, w.in = nil, nil
}

// End kills all processes that this package has started and removes its [TempDir]s, and waits for that.
func End() { leftovers.end() }

// TempDir creates a folder in [os.TempDir] that is removed when this process ends, however it ends.
func TempDir(pattern string) (string, error) {
	dir, err := os.MkdirTemp("", pattern)
	if err != nil {
		return "", err
	}
	if !strings.HasPrefix(dir, "/") || strings.Contains(dir, "\n") {
		return dir, nil // the shell takes absolute paths only; the caller must remove this one
	}
	if err := leftovers.say(dir); err != nil {
		os.Remove(dir)
		return "", err
	}
	return dir, nil
}

// onLastingThread runs f on a thread that lives as long as this process: the kernel sends Pdeathsig when the thread
// that started the child ends.
func onLastingThread(f func()) {
	done := make(chan struct{})
	lasting() <- func() { defer close(done); f() }
	<-done
}

// lasting passes functions to that thread.
var lasting = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread() // and never unlocked
		for f := range work {
			f()
		}
	}()
	return work
})
