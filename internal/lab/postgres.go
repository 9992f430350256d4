package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ErrNoPostgres means that this machine has no PostgreSQL.
var ErrNoPostgres = errors.New("no PostgreSQL")

// Postgres is a PostgreSQL on a loopback address.
type Postgres struct {
	*Process        // nil before the first Start
	Addr     string // host:port
	Data     string // the folder with its data
	bin      string
}

// NewPostgres returns a PostgreSQL without data, which does not run yet. Remove deletes its folder. It returns ErrNoPostgres
// if there are no programs for it.
func NewPostgres() (*Postgres, error) {
	p := &Postgres{bin: postgresPrograms()}
	if p.bin == "" {
		return nil, ErrNoPostgres
	}
	var err error
	if p.Addr, err = (Ports{}).Addr(); err != nil {
		return nil, err
	}
	parent, err := os.MkdirTemp("", "keyward-postgres-") // which PostgreSQL's user can enter
	if err != nil {
		return nil, err
	}
	p.Data = filepath.Join(parent, "data")
	err = os.Mkdir(p.Data, 0o700)
	if c := postgresUser(); c != nil && err == nil {
		err = errors.Join(os.Chown(parent, int(c.Uid), int(c.Gid)), os.Chown(p.Data, int(c.Uid), int(c.Gid)))
	}
	if err != nil {
		p.Remove()
		return nil, fmt.Errorf("create a folder for PostgreSQL: %w", err)
	}
	return p, nil
}

// Init creates a database postgres of the user keyward, to which anyone may connect.
func (p *Postgres) Init() error {
	return p.Command("initdb", "-D", p.Data, "-A", "trust", "-U", "keyward", "-E", "UTF8", "--locale=C", "--no-sync")
}

// Command runs one of PostgreSQL's programs, for at most 30 s.
func (p *Postgres) Command(name string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(p.bin, name), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: postgresUser()}
	cmd.Dir = filepath.Dir(p.Data)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, out)
	}
	return nil
}

// postgresPrograms returns the folder of PostgreSQL's programs, or nothing.
func postgresPrograms() string {
	if path, err := exec.LookPath("postgres"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			return filepath.Dir(path)
		}
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres") // Debian's
	if len(found) == 0 {
		return ""
	}
	slices.Sort(found)
	return filepath.Dir(found[len(found)-1])
}

// postgresUser returns the user that runs PostgreSQL, which refuses to run as root. It returns nil for the present user.
func postgresUser() *syscall.Credential {
	if os.Getuid() != 0 {
		return nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return &syscall.Credential{Uid: 65534, Gid: 65534} // the user without files of its own
	}
	uid, _ := strconv.ParseUint(u.Uid, 10, 32)
	gid, _ := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

// Start starts it, and does not wait until it accepts connections. It does not sync its files, so they survive the end of
// all its processes, and not that of the machine.
func (p *Postgres) Start() error {
	host, port, _ := net.SplitHostPort(p.Addr)
	spec := Spec{Name: "postgres", Path: filepath.Join(p.bin, "postgres"), Dir: p.Data, Args: []string{
		"-D", p.Data, "-h", host, "-p", port, "-k", "",
		"-c", "fsync=off", "-c", "max_connections=30", "-c", "shared_buffers=16MB",
	}}
	if c := postgresUser(); c != nil {
		ids := fmt.Sprintf("--reuid=%d --regid=%d --clear-groups --pdeathsig=KILL", c.Uid, c.Gid)
		spec.Args = slices.Concat(strings.Fields(ids), []string{spec.Path}, spec.Args)
		spec.Path = "/usr/bin/setpriv"
	}
	process, err := StartProcess(filepath.Dir(p.Data), spec)
	if err == nil {
		p.Process = process
	}
	return err
}

// Crash ends all its processes at once, without a checkpoint, and waits for them.
func (p *Postgres) Crash() {
	_ = p.Signal(syscall.SIGQUIT)
	select {
	case <-p.Exited():
	case <-time.After(10 * time.Second):
		p.Kill()
	}
}

// Remove ends it and deletes its folder.
func (p *Postgres) Remove() {
	if p.Process != nil {
		p.Crash()
	}
	_ = os.RemoveAll(filepath.Dir(p.Data))
}

// URL returns its address for clients.
func (p *Postgres) URL() string { return "postgres://keyward@" + p.Addr + "/postgres?sslmode=disable" }
