// Package recorded plays jobs in virtual time as their directories of a run have recorded them: it
// reads what was measured, finds a job in virtual time that does the same, and says what would come
// of something else. It is pure: files come in as bytes, and the same bytes give the same report.
package recorded

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/sense/history"
	"github.com/shoal-ml/shoal/setting"
)

// Files are the files of a directory of a run that are read; nil = there is no such file.
type Files struct {
	Job    []byte // job.json
	Sense  []byte // sense.jsonl
	Events []byte // events.jsonl
}

// Run is what the files say. Read makes one; later nothing changes it.
type Run struct {
	Name        string        // of the job; "" = not known
	Command     []string      // nil = not known
	Version     string        // of shoal, which has run it; "" = not known
	Workers     int           // to start with; 0 = not known
	Generations int           // memberships that it had
	Changes     int           // changes of its setting
	Shares      bool          // some of these divide the work unequally
	Rows        []history.Row // in the order of the file
	Missing     []string      // what is not there, or could not be read, in words
}

// Read reads the files of a run, as far as they can be read. version is that of this program.
func Read(f Files, version string) *Run {
	r := &Run{}
	r.readJob(f.Job, version)
	r.readRows(f.Sense)
	r.readEvents(f.Events)
	return r
}

// addMissingf adds something that is missing.
func (r *Run) addMissingf(format string, args ...any) {
	r.Missing = append(r.Missing, fmt.Sprintf(format, args...))
}

// readJob reads job.json.
func (r *Run) readJob(text []byte, version string) {
	var record struct {
		Spec struct {
			Name    string   `json:"name"`
			Workers int      `json:"workers"`
			Command []string `json:"command"`
		} `json:"spec"`
		Version string `json:"version"`
	}
	if text == nil {
		r.addMissingf("there is no job.json, so what was run is not known")
		return
	}
	if err := json.Unmarshal(text, &record); err != nil {
		r.addMissingf("job.json cannot be read, so what was run is not known: %v", err)
		return
	}
	r.Name, r.Command, r.Version = record.Spec.Name, record.Spec.Command, record.Version
	r.Workers = record.Spec.Workers
	if r.Version != version {
		r.addMissingf("the run is of shoal %s and this is %s: what only that one writes is left "+
			"out", r.Version, version)
	}
}

// readRows reads sense.jsonl.
func (r *Run) readRows(text []byte) {
	if text == nil {
		r.addMissingf("there is no sense.jsonl: the job took no steps, this host has not led it, " +
			"or its version of shoal writes none")
		return
	}
	wrong, first := 0, ""
	eachLine(text, func(number int, line []byte, torn bool) {
		row, err := history.Parse(line)
		switch {
		case err == nil:
			r.Rows = append(r.Rows, row)
		case torn:
			r.addMissingf("the last line of sense.jsonl is torn, and left out")
		default:
			if wrong++; wrong == 1 {
				first = fmt.Sprintf("line %d: %v", number, err)
			}
		}
	})
	if wrong > 0 {
		r.addMissingf("%s of sense.jsonl cannot be read and %s left out, the first is %s",
			plural.Of(wrong, "line"), plural.Verb(wrong, "is", "are"), first)
	}
	if len(r.Rows) == 0 {
		r.addMissingf("sense.jsonl has nothing that can be read")
	}
}

// readEvents reads events.jsonl.
func (r *Run) readEvents(text []byte) {
	if text == nil {
		r.addMissingf("there is no events.jsonl, so what happened to the job is not known")
		return
	}
	wrong := 0
	eachLine(text, func(_ int, line []byte, torn bool) {
		var e struct {
			What   string `json:"what"`
			Change *struct {
				Phase setting.Phase `json:"phase"`
				To    string        `json:"to"`
			} `json:"change"`
		}
		if err := json.Unmarshal(line, &e); err != nil {
			if !torn {
				wrong++
			}
			return
		}
		if e.What == "generation" {
			r.Generations++
		}
		if e.Change != nil && e.Change.Phase == setting.Entered {
			r.Changes++
			r.Shares = r.Shares || strings.Contains(e.Change.To, "shares=")
		}
	})
	if wrong > 0 {
		r.addMissingf("%s of events.jsonl cannot be read and %s left out", plural.Of(wrong, "line"),
			plural.Verb(wrong, "is", "are"))
	}
}

// eachLine calls f for each line that is not empty, with its number from 1. torn is whether it is
// the last one and has no end.
func eachLine(text []byte, f func(number int, line []byte, torn bool)) {
	for number := 1; len(text) > 0; number++ {
		line, rest, ended := bytes.Cut(text, []byte("\n"))
		if len(bytes.TrimSpace(line)) > 0 {
			f(number, line, !ended)
		}
		text = rest
	}
}
