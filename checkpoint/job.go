package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/state/manifest"
)

// Checkpoints of running jobs have a description beside their tensors: it is compared with those.
// The methods change nothing; like all of Checkpoint they are for one goroutine at a time.

// Faults lists what is wrong with the structure of a checkpoint, and with the description that a
// running job's checkpoint has beside its tensors. It reads no tensor.
func (c *Checkpoint) Faults() []format.Fault {
	faults := c.Check(c.Files)
	if f := c.JobFault(); f != nil {
		faults = append(faults, *f)
	}
	return faults
}

// JobFault returns what is wrong with the description that a running job's checkpoint has beside
// its tensors; nil if nothing is, or the checkpoint is not one of a running job. It reads the
// description, and no tensor.
func (c *Checkpoint) JobFault() *format.Fault {
	err := c.checkJob()
	if err == nil {
		return nil
	}
	return &format.Fault{Name: snapshot.StateName,
		What: fmt.Sprintf("%v; no job can resume from this checkpoint: restore the file from "+
			"another copy, or resume from an older checkpoint", err)}
}

// checkJob fails when the checkpoint is one of a running job and its description is missing, cannot
// be read, or describes other tensors.
func (c *Checkpoint) checkJob() error {
	if c.file != "" {
		return nil
	}
	text, err := c.Files.ReadAll(snapshot.StateName, snapshot.MaxTextBytes)
	if errors.Is(err, fs.ErrNotExist) {
		if !c.Job && !c.listsJob() {
			return nil
		}
		return errors.New("the description of the job's state is missing")
	}
	if err != nil {
		return err
	}
	state, err := snapshot.ParseState(text)
	if err == nil {
		err = c.notesFault
	}
	if err != nil || c.selected || c.derived || len(c.renamed) > 0 {
		return err
	}
	line := func(name string, dtype, shape any) string {
		return fmt.Sprintf("%q as %v %v", name, dtype, shape)
	}
	described, stored := map[string]bool{}, map[string]bool{}
	for _, t := range state.Tensors {
		described[line(t.Name, t.DType, t.Shape)] = true
	}
	for i := range c.Tensors {
		t := &c.Tensors[i]
		stored[line(t.Name, t.DType, t.Shape)] = true
	}
	if x := firstMissing(described, stored); x != "" {
		return fmt.Errorf("it lists tensor %s, and the files have no such tensor", x)
	}
	if x := firstMissing(stored, described); x != "" {
		return fmt.Errorf("it does not list tensor %s, and the files have it", x)
	}
	return nil
}

// listsJob reports whether the manifest lists the description of a job's state.
func (c *Checkpoint) listsJob() bool {
	return c.sealed != nil && slices.ContainsFunc(c.sealed.Files, func(f manifest.File) bool {
		return f.Name == snapshot.StateName
	})
}

// firstMissing returns the first key of a, in ascending order, that b lacks; "" if there is none.
func firstMissing(a, b map[string]bool) (first string) {
	for key := range a {
		if !b[key] && (first == "" || strings.Compare(key, first) < 0) {
			first = key
		}
	}
	return first
}
