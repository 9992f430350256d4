package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// need is something that a stage needs of the machine.
type need struct {
	have   func() bool
	debian string // the package that brings it
	bring  string // what else does
}

func program(name, debian string) need {
	return need{debian: debian, have: func() bool {
		_, err := exec.LookPath(name)
		return err == nil
	}}
}

func file(path, debian string) need {
	return need{debian: debian, have: func() bool {
		_, err := os.Stat(path)
		return err == nil
	}}
}

// havePostgres reports whether this machine has a PostgreSQL server. Debian does not put it on the path.
func havePostgres() bool {
	if _, err := exec.LookPath("postgres"); err == nil {
		return true
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	return len(found) > 0
}

// haveCargo reports whether this machine has cargo of Rust 1.85 or later.
func haveCargo() bool {
	out, err := exec.Command("cargo", "--version").Output()
	var major, minor int
	if _, scan := fmt.Sscanf(string(out), "cargo %d.%d", &major, &minor); err != nil || scan != nil {
		return false
	}
	return major > 1 || minor >= 85
}

// cargoPackage returns the package with a cargo that is new enough. Debian 12 has it apart from its own compiler's.
func cargoPackage() string {
	if release, _ := os.ReadFile("/etc/os-release"); strings.Contains(string(release), "VERSION_CODENAME=bookworm") {
		return "cargo-web"
	}
	return "cargo"
}

// needs returns all needs of the stages.
var needs = map[string]need{
	"root":       {have: func() bool { return runtime.GOOS == "linux" && os.Getuid() == 0 }, bring: "run it as root on Linux"},
	"python3":    program("python3", "python3"),
	"venv":       {have: func() bool { return exec.Command("python3", "-c", "import ensurepip").Run() == nil }, debian: "python3-venv"},
	"ip":         program("ip", "iproute2"),
	"iptables":   program("iptables", "iptables"),
	"redis":      program("redis-server", "redis-server"),
	"postgres":   {have: havePostgres, debian: "postgresql"},
	"java":       program("java", "default-jre-headless"),
	"mvn":        program("mvn", "maven"),
	"chromium":   program("chromium", "chromium"),
	"prometheus": program("prometheus", "prometheus"),
	"npm":        program("npm", "npm"),
	"node":       program("node", "nodejs"),
	"curl":       program("curl", "curl"),
	"cargo":      {have: haveCargo, debian: cargoPackage()},
	"containerd": program("containerd", "containerd"),
	"runc":       program("runc", "runc"),
	"etcd":       program("etcd", "etcd-server"),
	"cni":        file("/usr/lib/cni/bridge", "containernetworking-plugins"),
	"nsenter":    program("nsenter", "util-linux"),
}

// lacking returns the needs that are not met, and how to meet them.
func (m *machine) lacking(names []string) (why, bring string) {
	var lacks, packages, other []string
	for _, name := range names {
		n, ok := needs[name]
		switch {
		case !ok:
			panic("no need is called " + name)
		case n.have():
			continue
		case n.debian != "":
			packages = append(packages, n.debian)
		default:
			other = append(other, n.bring)
		}
		lacks = append(lacks, name)
	}
	if len(lacks) == 0 {
		return "", ""
	}
	if len(packages) > 0 {
		other = append(other, "apt-get install "+strings.Join(packages, " "))
	}
	return "this machine lacks " + strings.Join(lacks, ", "), strings.Join(other, "; ")
}

// missingPackages returns the Debian packages that the stages need and the machine lacks.
func missingPackages(stages []*stage) (out []string) {
	for _, s := range stages {
		for _, name := range slices.Concat(s.needs, s.wants) {
			if n := needs[name]; n.debian != "" && !n.have() && !slices.Contains(out, n.debian) {
				out = append(out, n.debian)
			}
		}
	}
	return out
}

// installer returns the command that installs packages, or why there is none. It does not start services of the
// packages: the tests start their own.
func (m *machine) installer(packages []string) ([]string, error) {
	if !m.install {
		return nil, fmt.Errorf("not installed: %s", strings.Join(packages, " "))
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return nil, fmt.Errorf("no apt-get on this machine: %s are not installed", strings.Join(packages, " "))
	}
	return append([]string{"scripts/packages"}, packages...), nil
}
