//go:build unix

package lab

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"strconv"
	"testing"
)

// TestPortsOfTwoProcesses requires that a port which another process has allocated is not allocated again, although
// nothing listens there.
func TestPortsOfTwoProcesses(t *testing.T) {
	ReservePorts = true
	if os.Getenv("KEYWARD_PORTS_CHILD") != "" {
		addr, err := Ports{}.Addr()
		if err != nil {
			t.Fatal(err)
		}
		os.Stdout.WriteString(addr + "\n")
		bufio.NewReader(os.Stdin).ReadByte() // until the parent is done
		return
	}
	child := exec.Command(os.Args[0], "-test.run", "^TestPortsOfTwoProcesses$")
	child.Env = append(os.Environ(), "KEYWARD_PORTS_CHILD=1")
	in, err1 := child.StdinPipe()
	out, err2 := child.StdoutPipe()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		in.Close()
		_ = child.Wait()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	_, text, err := net.SplitHostPort(line[:len(line)-1])
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	if reservePort(port) {
		t.Errorf("port %d is allocated by two processes", port)
	}
}
