package main

import (
	"archive/tar"
	"bytes"
	"crypto/md5" //nolint:gosec // the format of Debian packages
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/google/rpmpack"
)

const maintainer = "Keyward <maintainers@keyward.dev>"

// deb returns a Debian package: deb(5).
func (r *release) deb(arch string, content tree) ([]byte, error) {
	data, err := content.tarGz("./", r.Time)
	if err != nil {
		return nil, err
	}
	control := tree{}
	var sums strings.Builder
	size := 0
	for _, name := range content.files() {
		body := content[name].body
		s := md5.Sum(body) //nolint:gosec // the format of Debian packages
		fmt.Fprintf(&sums, "%s  %s\n", hex.EncodeToString(s[:]), name)
		size += (len(body) + 1023) / 1024
	}
	control.file("md5sums", 0o644, []byte(sums.String()))
	control.file("control", 0o644, []byte(r.debControl(arch, size)))
	meta, err := control.tarGz("./", r.Time)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.WriteString("!<arch>\n")
	for _, m := range []struct {
		name string
		body []byte
	}{{"debian-binary", []byte("2.0\n")}, {"control.tar.gz", meta}, {"data.tar.gz", data}} {
		fmt.Fprintf(&b, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", m.name, r.Time.Unix(), 0, 0, "100644", len(m.body))
		b.Write(m.body)
		if len(m.body)%2 == 1 {
			b.WriteByte('\n')
		}
	}
	return b.Bytes(), nil
}

// debControl returns the control file. A ~ sorts a pre-release before its release.
func (r *release) debControl(arch string, kilobytes int) string {
	return fmt.Sprintf("Package: %s\nVersion: %s\nArchitecture: %s\nMaintainer: %s\nInstalled-Size: %d\nSection: net\nPriority: optional\nHomepage: %s\nDescription: %s\n",
		project, strings.Replace(r.Version, "-", "~", 1), arch, maintainer, kilobytes, source, description)
}

// rpmArchitectures are what RPM calls Go's architectures.
var rpmArchitectures = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

// rpm returns an RPM package.
func (r *release) rpm(arch string, content tree) ([]byte, error) {
	p, err := rpmpack.NewRPM(rpmpack.RPMMetaData{
		Name: project, Summary: description, Description: description, Version: strings.Replace(r.Version, "-", "~", 1), Release: "1",
		Arch: rpmArchitectures[arch], OS: "linux", URL: source, Packager: maintainer, Licence: license, BuildHost: "localhost",
		Compressor: "gzip", Epoch: rpmpack.NoEpoch, BuildTime: r.Time,
	})
	if err != nil {
		return nil, err
	}
	for _, name := range content.names() {
		e := content.at(name)
		if e.kind == tar.TypeDir && !strings.Contains("/"+name+"/", "/keyward/") {
			continue // folders of the system belong to other packages
		}
		f := rpmpack.RPMFile{Name: "/" + name, Body: e.body, Mode: uint(e.mode), Owner: "root", Group: "root", MTime: uint32(r.Time.Unix())} //nolint:gosec // until 2106
		switch e.kind {
		case tar.TypeSymlink:
			f.Body, f.Mode = []byte(e.link), 0o120777
		case tar.TypeDir:
			f.Mode |= 0o40000
		}
		p.AddFile(f)
	}
	var b bytes.Buffer
	if err := p.Write(&b); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
