package app

import (
	"os"
	"strconv"
	"strings"
	"syscall"
)

// releaseProgram unmaps the pages of the program file, most of which are only used at start. They stay in the page
// cache while the memory is not needed otherwise, and are mapped again when they are used.
func releaseProgram() {
	program, err1 := os.Readlink("/proc/self/exe")
	maps, err2 := os.ReadFile("/proc/self/maps")
	if err1 != nil || err2 != nil {
		return
	}
	for line := range strings.Lines(string(maps)) {
		// proc_pid_maps(5): address, permissions, offset, device, inode, path. Writable mappings are kept.
		f := strings.Fields(line)
		if len(f) != 6 || f[5] != program || strings.Contains(f[1], "w") {
			continue
		}
		from, to, _ := strings.Cut(f[0], "-")
		start, err1 := strconv.ParseUint(from, 16, 64)
		end, err2 := strconv.ParseUint(to, 16, 64)
		if err1 == nil && err2 == nil {
			_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, uintptr(start), uintptr(end-start), syscall.MADV_DONTNEED)
		}
	}
}
