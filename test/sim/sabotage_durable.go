package sim

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/keyward/keyward/internal/durable"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/journal"
	"github.com/keyward/keyward/journal/modeldisk"
	"github.com/keyward/keyward/owner"
)

// The bugs of journals.
const (
	bugConfirmUnsynced    bug = 200 + iota // records count as durable before they are
	bugRemoveEarly                         // former journals are removed before a new one has their counters
	bugLoadLast                            // what a journal contains replaces what others do
	bugDecideWhileLoading                  // members do not wait for journals
	bugForgetAhead                         // what was reserved ahead is not charged
	bugConfirmNewer                        // records confirm hits that were charged after them
	bugSuccessorsIdle                      // successors write nothing
	bugRetrySync                           // a repeated sync confirms what the failed one has lost
)

// durableBugs are the bugs of journals, by name.
var durableBugs = map[string]bug{
	"confirm before the sync":                      bugConfirmUnsynced,
	"remove former journals before a new one":      bugRemoveEarly,
	"a journal replaces another":                   bugLoadLast,
	"decide while loading":                         bugDecideWhileLoading,
	"forget what was reserved ahead":               bugForgetAhead,
	"a late record confirms newer hits":            bugConfirmNewer,
	"successors write nothing":                     bugSuccessorsIdle,
	"a repeated sync confirms what was not synced": bugRetrySync,
}

// sabotageSync performs a sync.
func (p *process) sabotageSync(sync func() error) error {
	m := p.m
	switch m.w.bug {
	case bugConfirmUnsynced:
		return nil
	case bugRetrySync:
		err := sync()
		if err == nil || errors.Is(err, modeldisk.ErrDead) {
			return err
		}
		p.volume.disk.Fail(modeldisk.Sync, nil)
		defer p.volume.disk.Fail(modeldisk.Sync, p.volume.syncError)
		return sync()
	case bugConfirmNewer:
		if err := sync(); err != nil {
			return err
		}
		if m.writing && m.roundSince != 0 {
			var b owner.JournalBatch
			m.node.BeginRound()
			for m.node.Due(m.clock(), &b) {
				b.Reset()
			}
			m.apply(m.node.Written(m.clock(), &b))
		}
		return nil
	}
	return sync()
}

// sabotageList hides all journals but one.
func (p *process) sabotageList(dir string, entries []journal.DirEntry) []journal.DirEntry {
	if p.m.w.bug != bugLoadLast || path.Dir(dir) != journalDir || len(entries) == 0 || p.m.writing {
		return entries
	}
	return entries[len(entries)-1:]
}

// sabotageLoaded processes that m has loaded the journals of former boots.
func (m *member) sabotageLoaded(res *durable.Recovery) {
	if m.w.bug != bugRemoveEarly || res.Boots == 0 {
		return
	}
	d := m.volume.disk
	fs := d.FS()
	for _, file := range d.Files(journalDir) {
		boot := path.Base(path.Dir(file))
		if strings.HasSuffix(file, ".seg") && !m.w.runs(boot) {
			_ = fs.Remove(file)
			_ = fs.SyncDir(path.Dir(file))
		}
	}
}

// runs reports whether the boot with that directory is running.
func (w *world) runs(dir string) bool {
	for _, m := range w.running() {
		if m.keeper != nil && fmt.Sprintf("%016x", inst(m.slot, m.boot)) == dir {
			return true
		}
	}
	return false
}

// sabotageJournaled changes the counters of a message so that m does not write them.
func (w *world) sabotageJournaled(msg *protocol.Message) {
	if w.bug != bugSuccessorsIdle || msg.Kind != protocol.Replica {
		return
	}
	for i := range msg.Counters {
		msg.Counters[i].Volatile = true
	}
}
