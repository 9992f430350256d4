package app

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/keyward/keyward/federation"
)

// layoutsEvery is the time between two checks of the file of --federation. It compares contents, as that of certificates
// does, and so notices files that are replaced by a symlink or in place.
const layoutsEvery = time.Second

// layouts is the schedule of a process, which follows the file of --federation. It is safe for concurrent use.
type layouts struct {
	file     string
	margin   time.Duration
	log      *slog.Logger
	schedule atomic.Pointer[federation.LayoutSchedule]
	content  []byte      // when the file was read last; used by refresh alone
	refused  atomic.Bool // the file contradicts the schedule, or is faulty
}

// openLayouts reads the file for a process that starts. regionOf returns the name of its region by the newest layout.
func openLayouts(file string, margin time.Duration, log *slog.Logger, regionOf func(newest *federation.Layout) string) (*layouts, error) {
	x := &layouts{file: file, margin: margin, log: log}
	ls, err := x.read()
	if err != nil {
		return nil, err
	}
	s, err := federation.NewLayoutSchedule(regionOf(ls[len(ls)-1]), x.margin, ls, time.Now().UnixNano())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	x.schedule.Store(s)
	return x, nil
}

func (x *layouts) read() ([]*federation.Layout, error) {
	content, err := os.ReadFile(x.file)
	if err != nil {
		return nil, err
	}
	x.content = content
	return federation.ParseLayouts(x.file, content)
}

// now returns the schedule.
func (x *layouts) now() *federation.LayoutSchedule { return x.schedule.Load() }

// inForce returns the layout of windows that begin now.
func (x *layouts) inForce() *federation.Layout {
	if p := x.now().At(time.Now().UnixNano()); p != nil {
		return p.Layout
	}
	return x.now().Newest()
}

// epoch returns the epoch of the layout of windows that begin now.
func (x *layouts) epoch() uint32 { return x.inForce().Epoch }

// terms is the federation.TermOf of the schedule.
func (x *layouts) terms(epoch uint32) (federation.LayoutTerm, bool) { return x.now().TermOf(epoch) }

// follow calls changed after each change of the schedule, until ctx ends.
func (x *layouts) follow(ctx context.Context, changed func()) {
	every(ctx, layoutsEvery, func(context.Context) {
		if x.refresh(time.Now().UnixNano()) {
			changed()
		}
	})
}

// refresh reads the file again, and reports whether that changes the schedule.
func (x *layouts) refresh(now int64) bool {
	content, err := os.ReadFile(x.file)
	if err == nil && bytes.Equal(content, x.content) {
		return false
	}
	var next *federation.LayoutSchedule
	var late []uint32
	if x.content = content; err == nil { // nil after an error, so that the file is read again
		var ls []*federation.Layout
		if ls, err = federation.ParseLayouts(x.file, content); err == nil {
			next, late, err = x.now().Update(ls, now)
		}
	}
	if was := x.refused.Swap(err != nil); err != nil {
		if !was {
			x.log.Error("layouts not used; the former ones remain in force", "file", x.file, "error", err)
		}
		return false
	}
	x.schedule.Store(next)
	n := next.Newest()
	x.log.Info("layouts read", "file", x.file, "epoch", n.Epoch, "from", n.From)
	for _, epoch := range late {
		x.log.Warn("layout was read too late; windows that begin within the margin have only floors", "file", x.file, "epoch", epoch, "margin", x.margin)
	}
	return true
}

// export exports the epochs. The region of a coordinator is "".
func (x *layouts) export(reg prometheus.Registerer, region string) {
	gauge := func(name, help string, value func() float64) {
		promauto.With(reg).NewGaugeFunc(prometheus.GaugeOpts{
			Name: "keyward_federation_" + name, Help: help,
			ConstLabels: prometheus.Labels{"federation": x.now().Newest().Name, "region": region},
		}, value)
	}
	gauge("epoch", "Epoch of the layout of windows that begin now. It is the same everywhere.", func() float64 { return float64(x.epoch()) })
	gauge("newest_epoch", "Highest epoch in the file of --federation, of a layout that may not apply yet.",
		func() float64 { return float64(x.now().Newest().Epoch) })
	gauge("layout_refused", "1 while the file of --federation is faulty or contradicts the layouts in use, which remain in force.", func() float64 {
		if x.refused.Load() {
			return 1
		}
		return 0
	})
}
