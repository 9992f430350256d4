package loadtest

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// CPUOf returns the processor time, user and system, that a process of this machine has used. It needs Linux.
func CPUOf(pid int) (time.Duration, error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, fmt.Errorf("CPU time of process %d: %w", pid, err)
	}
	// The name in parentheses may hold blanks; utime and stime are the 14th and 15th fields of proc_pid_stat(5).
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(f) < 13 {
		return 0, fmt.Errorf("CPU time of process %d: cannot be read", pid)
	}
	u, err1 := strconv.ParseInt(f[11], 10, 64)
	s, err2 := strconv.ParseInt(f[12], 10, 64)
	const ticksPerSecond = 100 // USER_HZ, fixed on every Linux that Go runs on
	return time.Duration(u+s) * time.Second / ticksPerSecond, errors.Join(err1, err2)
}

// Listener returns the process of this machine that listens on a TCP address. It sees only processes that the caller may inspect.
func Listener(addr string) (pid int, err error) {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("port of %s: %w", addr, err)
	}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, err := os.ReadFile(table)
		if err != nil {
			continue
		}
		if inode := listening(string(b), uint16(n)); inode != "" {
			return holder("socket:[" + inode + "]")
		}
	}
	return 0, fmt.Errorf("nothing on this machine listens on %s", addr)
}

// listening is the inode of the socket that listens on a port, in a table as of proc_pid_net(5); empty: none.
func listening(table string, port uint16) string {
	const listen = "0A"
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) > 9 && f[3] == listen && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
			return f[9]
		}
	}
	return ""
}

// holder is the process that has a file open.
func holder(file string) (int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return 0, err
	}
	for _, f := range files {
		if to, err := os.Readlink(f); err == nil && to == file {
			return strconv.Atoi(strings.Split(f, "/")[2])
		}
	}
	return 0, errors.New("its process cannot be seen")
}
