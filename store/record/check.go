package record

import (
	"errors"
	"fmt"
	"unicode"
	"unicode/utf8"

	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/topo"
)

// What may stand in the record: all that is read or written is checked here. The methods and
// functions only read what they check.

// checker is a value that can tell whether it may be written and believed, and under which key.
type checker interface {
	check() error // nil = the value may be written
	key() string  // defined for a value that passes check
}

// key returns the key under which the owner is kept.
func (v *Owner) key() string { return OwnerKey(v.Job) }

// key returns the key under which the generation is kept.
func (v *generationValue) key() string { return GenerationKey(v.Job, v.Run, v.Record.Generation) }

// check fails for an owner with a name or time that cannot be.
func (v *Owner) check() error {
	if v.Since < 0 || v.Ended < 0 {
		return errors.New("a time before 1970")
	}
	return errors.Join(checkName("job", v.Job), checkName("run", v.Run), checkName("host", v.Host),
		checkText("address", v.Address))
}

// check fails for a generation without a record, or with a name that cannot be.
func (v *generationValue) check() error {
	if v.Record == nil {
		return errors.New("no record")
	}
	return errors.Join(checkName("job", v.Job), checkName("run", v.Run), v.Record.check())
}

// check fails for a record that no head can have written.
func (v *recordValue) check() error {
	if v.Members == nil || v.Hosts == nil {
		return errors.New("a list that is not there")
	}
	if min(v.Want, v.Min, v.Max, v.Spares, v.Done) < 0 {
		return errors.New("a size below 0")
	}
	err := checkName("head", v.Head)
	seen := make(map[topo.WorkerID]bool, len(v.Members))
	for _, m := range v.Members {
		if seen[m.Worker] {
			err = errors.Join(err, fmt.Errorf("worker %d twice", m.Worker))
		}
		seen[m.Worker] = true
		err = errors.Join(err, checkName("host", m.Host))
	}
	names := make(map[string]bool, len(v.Hosts))
	for _, h := range v.Hosts {
		if names[h.Name] {
			err = errors.Join(err, fmt.Errorf("host %s twice", h.Name))
		}
		if h.Slots < member.NoSlots {
			err = errors.Join(err, fmt.Errorf("host %s has %d slots", h.Name, h.Slots))
		}
		if h.Kind != "" {
			err = errors.Join(err, topo.CheckKind(h.Kind))
		}
		names[h.Name] = true
		err = errors.Join(err, checkName("host", h.Name))
	}
	return err
}

// CheckJob fails for a text that cannot be the name of a job.
func CheckJob(name string) error { return checkName("job", name) }

// maxName bounds names, so that the keys made of them are keys.
const maxName = 128

// checkName fails for a text that cannot be the name of a thing; what is the thing in the error,
// such as "job" or "host".
func checkName(what, name string) error {
	if name == "" {
		return fmt.Errorf("the %s has no name", what)
	}
	return checkText(what, name)
}

// checkText fails for a text that is too long for a name, or that people cannot read; what says in
// the error what it is.
func checkText(what, s string) error {
	if len(s) > maxName {
		return fmt.Errorf("the %s %.20q… has %d bytes; at most %d are allowed", what, s, len(s),
			maxName)
	}
	if !utf8.ValidString(s) {
		return fmt.Errorf("the %s %q is not UTF-8", what, s)
	}
	for _, r := range s {
		if unicode.IsControl(r) {
			return fmt.Errorf("the %s %q has a control character", what, s)
		}
	}
	return nil
}
