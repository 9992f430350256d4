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

// What this process starts and makes has to end with it, however it ends: killed, its terminal closed, out of memory. Two
// mechanisms see to it.
//
//   - On Linux each child is killed by the kernel when the thread that started it ends (see onLastingThread).
//   - A shell in a session of its own reads a pipe that this process alone can write to. When the pipe is closed it kills the process
//     groups that it was told of and removes the folders. It is what removes folders at all, and all there is on other systems.

// cleaner is that shell's script. A line is a sign and a word: + a process, - one that has ended, / a folder.
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
  tries=0 # whoever was killed a moment ago may still write there
  while [ -e "$folder" ] && [ $tries -lt 50 ]; do
    rm -rf -- "$folder" 2>/dev/null || sleep 0.1
    tries=$((tries + 1))
  done
done
`

// watcher is a shell that outlives this process for as long as it takes to clean up. The zero value has not been started. Its
// methods are safe for concurrent use.
type watcher struct {
	mu  sync.Mutex
	cmd *exec.Cmd // guarded by mu; nil: none runs
	in  *os.File  // guarded by mu
}

// leftovers is the watcher of all that this process starts and makes.
var leftovers watcher

// say tells the shell one line; the first one starts it.
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

// know has the group of a process killed.
func (w *watcher) know(pid int) error { return w.say("+" + strconv.Itoa(pid)) }

// forget takes back what know has said, once the process has ended.
func (w *watcher) forget(pid int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cmd != nil {
		_, _ = fmt.Fprintf(w.in, "-%d\n", pid) // an error means that there is no shell that could kill it
	}
}

// start starts a shell with a script of its own.
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
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // what ends this process's group or terminal must not end it
	if err := cmd.Start(); err != nil {
		in.Close()
		return fmt.Errorf("watch over what is started: %w", err)
	}
	w.cmd, w.in = cmd, in
	return nil
}

// end has the shell clean up now, and waits until it has.
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

// End ends at once all that this process has started with this package and removes its [TempDir]s, as its own death would. It returns
// when that is done.
func End() { leftovers.end() }

// TempDir makes a new folder in [os.TempDir] which goes when this process ends, however it ends, if it is still there.
func TempDir(pattern string) (string, error) {
	dir, err := os.MkdirTemp("", pattern)
	if err != nil {
		return "", err
	}
	if !strings.HasPrefix(dir, "/") || strings.Contains(dir, "\n") {
		return dir, nil // a line is an absolute path: this one goes with its maker's own care alone
	}
	if err := leftovers.say(dir); err != nil {
		os.Remove(dir)
		return "", err
	}
	return dir, nil
}

// onLastingThread runs f on a thread that lives as long as this process: what the kernel is to do at the parent's death it does at
// the death of the thread that started the child.
func onLastingThread(f func()) {
	done := make(chan struct{})
	lasting() <- func() { defer close(done); f() }
	<-done
}

// lasting is where that thread takes what it is to run.
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
