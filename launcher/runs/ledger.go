package runs

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/setting"
)

// The ledger of a run, events.jsonl. The functions keep nothing, lock nothing but while they run,
// and may be called on any goroutine; only endChangesOfKilledRun writes.

// Entry is a line of events.jsonl, the ledger of a run.
type Entry struct {
	Time time.Time `json:"time"`
	agent.Event
}

// LedgerPath is the path of the ledger in a run's directory.
func LedgerPath(dir string) string { return filepath.Join(dir, "events.jsonl") }

// ParseLedger reads the whole lines of a ledger, or of a part of one that begins with a line, and
// says how many bytes they take, and how many of them cannot be read and are left out.
func ParseLedger(text []byte) (entries []Entry, n, damaged int) {
	for line := range bytes.Lines(text) {
		if line[len(line)-1] != '\n' {
			break
		}
		n += len(line)
		var e Entry
		if json.Unmarshal(line, &e) != nil {
			damaged++
			continue
		}
		entries = append(entries, e)
	}
	return entries, n, damaged
}

// Changes returns the changes in a ledger, each as its last entry has it, in the order in which
// they were entered.
func Changes(entries []Entry) (list []ChangeResult) {
	at := map[string]int{} // by name of a change, its index in the list
	for _, e := range entries {
		if e.Change == nil {
			continue
		}
		i, has := at[e.Change.Name()]
		if !has {
			i, list = len(list), append(list, ChangeResult{})
			at[e.Change.Name()] = i
		}
		list[i] = ChangeResult{*e.Change, e.Change.Phase != setting.Reverted}
	}
	return list
}

// ChangeEvent is what an event about a change is called. It is pure.
func ChangeEvent(c setting.Change) string {
	if c.Policy == setting.Routes {
		return "route"
	}
	return "change"
}

// MissingEnds returns what the ledger of a run that is over lacks: the end of each change
// that was measured when its launcher was killed, or when this host left the job. The time and the
// step are those of the last entry. dir is the directory of the run.
func MissingEnds(dir string, entries []Entry) (ends []Entry) {
	for _, c := range Changes(entries) {
		if c.Phase.IsEnd() {
			continue
		}
		result, _ := ReadResult(dir) // there is none where the launcher was killed
		end := c.EndWithJob(result.GoesOn != "" || strings.Contains(filepath.Base(dir), "@"))
		e := entries[len(entries)-1]
		e.Event = agent.Event{What: ChangeEvent(end), Generation: e.Generation, Size: e.Size,
			Step: e.Step, OptimizerSteps: e.OptimizerSteps, Because: end.Because, Change: &end}
		ends = append(ends, e)
	}
	return ends
}

// endChangesOfKilledRun writes what MissingEnds returns into the ledger of an earlier run. It
// does nothing where the run has a result, where its launcher lives, which has locked the ledger,
// and where the last line is torn. It keeps the file open and locked only while it runs.
func endChangesOfKilledRun(dir string) error {
	if _, err := ReadResult(dir); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	f, err := os.OpenFile(LedgerPath(dir), os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return nil // there is none
	}
	defer f.Close()
	if err := durable.Flock(f, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	entries, whole, _ := ParseLedger(text)
	if whole < len(text) {
		return nil
	}
	for _, e := range MissingEnds(dir, entries) {
		line, err := json.Marshal(e)
		if err != nil {
			return err
		}
		if err := appendWhole(f, append(line, '\n')); err != nil {
			return err
		}
	}
	return nil
}

// Lives reports whether the launcher of the run in dir lives, which has locked the ledger. It knows
// of none on a disk without locks.
func Lives(dir string) bool { return durable.IsLocked(LedgerPath(dir)) }
