package journal_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"slices"
	"syscall"

	"github.com/keyward/keyward/journal"
	"github.com/keyward/keyward/journal/modeldisk"
)

// errCrash is returned if the process ended while it read.
var errCrash = errors.New("crash")

// load reads every directory and compares it with what is known of its boot. If it crashes meanwhile, it starts again.
func (w *crashWorld) load() error {
	for {
		if err := w.loadAll(); !errors.Is(err, errCrash) {
			return err
		}
		w.dead = false
	}
}

// loadAll is load without a repetition.
func (w *crashWorld) loadAll() error {
	boots, err := journal.Boots(w.disk.FS(), dataDir, "test")
	if err != nil {
		return err
	}
	for _, b := range w.boots {
		i := slices.IndexFunc(boots, func(f journal.Boot) bool { return f.ID == b.id })
		switch {
		case i < 0 && len(b.must) > 0 && !b.removed:
			return fmt.Errorf("boot %x: no directory, but %d payloads were confirmed", b.id, len(b.must))
		case i >= 0 && b.gone:
			return fmt.Errorf("boot %x: the directory was removed, and is there again", b.id)
		case i < 0:
			continue
		}
		if err := w.loadBoot(boots[i], b); err != nil {
			return fmt.Errorf("boot %x: %w", b.id, err)
		}
	}
	return nil
}

// loadBoot reads one directory, and may damage or remove it then.
func (w *crashWorld) loadBoot(found journal.Boot, b *bootModel) error {
	if w.rng.IntN(10) == 0 {
		if err := w.readBroken(found, b); err != nil {
			return err
		}
	}
	r, err := found.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	if _, err := found.Open(); !errors.Is(err, journal.ErrLocked) {
		return fmt.Errorf("opened twice: %w", err)
	}
	got, err := w.readFrom(r, b)
	if err != nil {
		return err
	}
	if err := b.check(got, r.Header(), w.recycle); err != nil {
		return fmt.Errorf("%w; %w", err, errors.Join(got.Errors...))
	}
	switch n := w.rng.IntN(10); {
	case n < 3 && len(w.disk.Files(found.Dir())) > 0 && !w.recycle && !b.flipped:
		return w.flip(found, b, got, r)
	case n < 6:
		return w.remove(found, b, r)
	}
	return nil
}

// check returns an error if not everything was read that had to be.
func (b *bootModel) check(got content, header journal.Header, recycle bool) error {
	undamaged := !b.flipped && !b.removed
	calm := undamaged && !b.faulty && !recycle
	switch lost := b.missing(got); {
	case undamaged && lost != 0:
		return fmt.Errorf("payload %d was confirmed and is not read", lost)
	case !b.mayBeUnreadable(recycle) && got.UnreadableFiles > 0:
		return fmt.Errorf("%d files are unreadable", got.UnreadableFiles)
	case calm && !b.powerless && (got.BadBlocks > 0 || got.MissingBlocks > 0):
		return fmt.Errorf("%d blocks are bad and %d are missing", got.BadBlocks, got.MissingBlocks)
	case undamaged && b.ever && !got.Complete:
		return errors.New("the complete generation is not recognized")
	case got.Clean && !b.stopping:
		return errors.New("the boot is reported as stopped, but was not")
	case calm && b.stopped && !got.Clean:
		return errors.New("the boot was stopped, but is not reported so")
	case len(got.places) > 0 && undamaged && (header.Member != "pod-0" || header.Boot != b.id || header.Scheme != 3 ||
		!slices.Equal(header.Ring, b.ring)):
		return fmt.Errorf("header: %+v", header)
	}
	return nil
}

// mayBeUnreadable reports whether a file of the boot may be unreadable for a good reason: it was damaged, its space was
// recycled with the header of another file, or it has no header and the files with one were removed before it.
func (b *bootModel) mayBeUnreadable(recycle bool) bool {
	return b.flipped || b.removed || recycle || b.faulty && b.powerless
}

// readBroken requires that a disk that cannot be read does no harm.
func (w *crashWorld) readBroken(found journal.Boot, b *bootModel) error {
	held := 0
	for _, f := range w.disk.Files(found.Dir()) {
		held += len(w.disk.Bytes(f))
	}
	if held == 0 {
		return nil // nothing has to be read
	}
	w.disk.Fail([]modeldisk.Operation{modeldisk.Open, modeldisk.Read}[w.rng.IntN(2)], syscall.EIO)
	defer w.disk.Heal()
	r, err := found.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	got, err := w.readFrom(r, b)
	if err != nil {
		return err
	}
	if err := r.Remove(); !errors.Is(err, journal.ErrUnreadable) || got.UnreadableFiles == 0 {
		return fmt.Errorf("a directory that cannot be read is removed: %w", err)
	}
	return nil
}

// remove removes a directory, and may crash meanwhile.
func (w *crashWorld) remove(found journal.Boot, b *bootModel, r *journal.BootReader) error {
	w.countdown = []int{0, 0, 0, 1 + w.rng.IntN(5)}[w.rng.IntN(4)]
	err := r.Remove()
	w.countdown = 0
	if b.mayBeUnreadable(w.recycle) && errors.Is(err, journal.ErrUnreadable) {
		return nil
	}
	b.removed = true
	clear(b.must)
	if w.dead {
		return errCrash
	}
	w.Removed++
	b.gone = err == nil
	return err
}

// flip damages bits of a boot's files, and requires that exactly the blocks with these bits are lost.
func (w *crashWorld) flip(found journal.Boot, b *bootModel, before content, r *journal.BootReader) error {
	headers := w.headers(found.Dir())
	flips := w.disk.FlipBits(found.Dir(), 1+w.rng.IntN(3), nil)
	w.Flipped += len(flips)
	b.flipped = true
	r.Close()
	after, err := w.read(found, b)
	if err != nil {
		return err
	}
	good := len(headers)
	for file, length := range headers {
		if slices.ContainsFunc(flips, func(f modeldisk.Flip) bool { return f.Path == file && f.Offset < length }) {
			headers[file] = 0
			good--
		}
	}
	harmed := 0
	for id, at := range before.places {
		end := at.Offset + 32 + int64(len(payload(b.id, id)))
		hit := good == 0 || slices.ContainsFunc(flips, func(f modeldisk.Flip) bool {
			return f.Path == at.File && f.Offset >= at.Offset && f.Offset < end
		})
		if _, ok := after.places[id]; !ok && !hit {
			return fmt.Errorf("payload %d is lost by %v: %w", id, flips, errors.Join(after.Errors...))
		}
		if hit {
			harmed++
		}
	}
	if harmed > 0 && after.BadBlocks+after.UnreadableFiles == 0 {
		return fmt.Errorf("%v are not reported", flips)
	}
	return nil
}

// headers returns the lengths of the intact headers in a directory, by path.
func (w *crashWorld) headers(dir string) map[string]int64 {
	headers := map[string]int64{}
	for _, file := range w.disk.Files(dir) {
		b := w.disk.Bytes(file)
		if path.Ext(file) != ".seg" || len(b) < 32 || b[4] != 1 {
			continue
		}
		length := 32 + int64(binary.LittleEndian.Uint32(b[8:]))
		if length <= int64(len(b)) && journal.Checksum(b[:length]) == binary.LittleEndian.Uint32(b[12:]) {
			headers[file] = length
		}
	}
	return headers
}
