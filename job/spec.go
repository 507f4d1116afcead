// Package job describes what people run: one job spec, written in YAML, that every way of starting
// a job reads. Load alone does I/O; the other functions change nothing but their results.
package job

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/yaml"

	"github.com/shoal-ml/shoal/internal/pattern"
	"github.com/shoal-ml/shoal/internal/plural"
)

// MaxWorkers bounds the workers of one host, so that a slip of the finger is an error and not a
// fork bomb.
const MaxWorkers = 1024

// maxName leaves room for the "-2" that keeps runs of the same name apart, within the 63 bytes of a
// DNS label.
const maxName = 50

// Spec is a job as the user writes it. The zero value of a field means its default.
type Spec struct {
	Name    string `json:"name,omitempty"`    // default: taken from the command
	Workers int    `json:"workers,omitempty"` // processes to start; default 1
	// with fewer workers the job waits for more; default: it goes on, but only losses by a signal
	// are survived
	Min int `json:"min,omitempty"`
	Max int `json:"max,omitempty"` // bound of shoal resize; default: none
	// workers beyond these that wait to take the place of lost ones; default: none
	Spares int `json:"spares,omitempty"`
	// whether the job takes every slot that its hosts offer, up to Max; default: it has the size
	// that somebody asks for
	Grow bool `json:"grow,omitempty"`
	// Python modules that one process of each host imports, from which the workers are forked;
	// default: each worker imports for itself
	Prefork []string          `json:"prefork,omitempty"`
	Command []string          `json:"command,omitempty"` // program and arguments of every worker
	Env     map[string]string `json:"env,omitempty"`     // added to the environment of every worker

	// collectives go between hosts by their lengths alone, not as they turn out to be fastest
	FixedRoutes bool `json:"fixed_routes,omitempty"`
	// what several ranks of a mesh have lies on two hosts, wherever the workers allow it
	Redundant bool `json:"redundant,omitempty"`
	// whether shoal changes how the job trains; default: only people do
	Auto Auto `json:"auto,omitempty"`
	// policies that decide beside or instead of those of shoal that else would, on the host that
	// leads the job: files, or names of other policies of shoal; default: none
	Policies []string `json:"policies,omitempty"`
	// money that an epoch may cost, and that a worker costs an hour: the size of the job is the one
	// with which an epoch takes least time for it; default: money does not count
	Budget float64 `json:"budget,omitempty"`
	Price  float64 `json:"price,omitempty"`
	// how the job stands among others in a pool; default: as any other
	Schedule *Schedule `json:"schedule,omitempty"`
}

// Auto says whether the policies of shoal change how a job trains.
type Auto string

// The values of Auto.
const (
	AutoOff   Auto = ""      // no policy decides, but for what act.Off has
	AutoAct   Auto = "act"   // policies decide, and their changes are made
	AutoWatch Auto = "watch" // policies decide and predict, and nothing is changed
)

// Error is a fault in a job spec: which key, and what, why, what to do.
type Error struct {
	Key string // key of the spec, "" when the fault is not in one key
	Msg string
}

// Error says which key is at fault, if one is, and what is wrong with it.
func (e *Error) Error() string {
	if e.Key == "" {
		return "job: " + e.Msg
	}
	return "job: " + e.Key + ": " + e.Msg
}

// WithDefaults returns the spec with every default filled in.
func (s Spec) WithDefaults() Spec {
	if s.Workers == 0 {
		s.Workers = 1
	}
	if s.Name == "" {
		s.Name = NameFor(s.Command)
	}
	return s
}

// Override returns s with every field that is set in top taken from top; env is merged key by key.
// It alters neither, and the result shares their lists.
func (s Spec) Override(top Spec) Spec {
	if top.Name != "" {
		s.Name = top.Name
	}
	if top.Min != 0 {
		s.Min = top.Min
	}
	if top.Max != 0 {
		s.Max = top.Max
	}
	if top.Spares != 0 {
		s.Spares = top.Spares
	}
	if len(top.Prefork) > 0 {
		s.Prefork = top.Prefork
	}
	if top.Workers != 0 {
		s.Workers = top.Workers
	}
	if len(top.Command) > 0 {
		s.Command = top.Command
	}
	s.Grow = s.Grow || top.Grow
	s.FixedRoutes = s.FixedRoutes || top.FixedRoutes
	s.Redundant = s.Redundant || top.Redundant
	if top.Auto != AutoOff {
		s.Auto = top.Auto
	}
	if len(top.Policies) > 0 {
		s.Policies = top.Policies
	}
	s.Budget, s.Price = cmp.Or(top.Budget, s.Budget), cmp.Or(top.Price, s.Price)
	if top.Schedule != nil {
		s.Schedule = top.Schedule
	}
	env := map[string]string{}
	for _, m := range []map[string]string{s.Env, top.Env} {
		for k, v := range m {
			env[k] = v
		}
	}
	if len(env) > 0 {
		s.Env = env
	}
	return s
}

// Validate returns the first fault as an *Error; nil = there is none. Call it after WithDefaults.
func (s Spec) Validate() error {
	if err := CheckName(s.Name); err != nil {
		return err
	}
	switch {
	case s.Workers < 1 || s.Workers > MaxWorkers:
		return workersError(s.Workers)
	case s.Min < 0 || s.Min > s.Workers:
		return &Error{"min",
			fmt.Sprintf("%d is not between 1 and the %s that the job begins with", s.Min,
				plural.Of(s.Workers, "worker"))}
	case s.Spares < 0 || s.Spares > MaxWorkers:
		return &Error{"spares",
			fmt.Sprintf("%d is no number of workers to keep waiting; give 0 to %d", s.Spares,
				MaxWorkers)}
	case s.Max != 0 && s.Max < s.Workers:
		return &Error{"max",
			fmt.Sprintf("%d is below the %s that the job begins with", s.Max,
				plural.Of(s.Workers, "worker"))}
	case s.Auto != AutoOff && s.Auto != AutoAct && s.Auto != AutoWatch:
		return &Error{"auto",
			fmt.Sprintf("%q is no way to run policies; there are act, which changes how the job "+
				"trains, and watch, which only says what it would change", s.Auto)}
	case len(s.Policies) > 0 && s.Auto == AutoOff:
		return &Error{"policies", "policies decide only in a job that lets them; add --auto, or " +
			"--auto=watch to see what they would do"}
	case slices.ContainsFunc(s.Policies, func(p string) bool { return p == "" || hasNUL(p) }):
		return &Error{"policies", "a policy is a file or a name, and one of them is neither"}
	}
	if err := cmp.Or(s.checkGrow(), s.checkMoney(), s.checkSchedule()); err != nil {
		return err
	}
	if len(s.Command) == 0 || s.Command[0] == "" {
		return &Error{"command", "nothing to run, because no command is given; " +
			"put it after -- (shoal run -n 4 -- python3 train.py) or into the file (command: " +
			"[python3, train.py])"}
	}
	if i := slices.IndexFunc(s.Command, hasNUL); i >= 0 {
		return &Error{"command",
			fmt.Sprintf("word %d holds a NUL byte, which no program can receive; take it out", i)}
	}
	for k, v := range s.Env {
		if err := checkEnv(k, v); err != nil {
			return err
		}
	}
	return checkPrefork(s.Prefork, s.Command)
}

// checkGrow returns why a job cannot grow with its hosts as an *Error; nil where it can, or does
// not.
func (s Spec) checkGrow() error {
	switch {
	case s.Grow && s.Spares > 0:
		return &Error{"grow", "a job that takes every slot leaves none for workers that wait, " +
			"and it replaces those that are lost anyway: leave out spares, or grow"}
	case s.Grow && s.Budget > 0:
		return &Error{"grow", "the hosts cannot decide the size of the job together with a " +
			"budget: leave out budget and price, or grow"}
	}
	return nil
}

// checkMoney returns what is wrong with the budget and the price as an *Error; nil = nothing.
func (s Spec) checkMoney() error {
	const most = 1e12
	switch {
	case !(s.Budget >= 0 && s.Budget <= most):
		return &Error{"budget", fmt.Sprintf("%v is no money that an epoch may cost", s.Budget)}
	case !(s.Price >= 0 && s.Price <= most):
		return &Error{"price", fmt.Sprintf("%v is no money that a worker costs an hour", s.Price)}
	case s.Budget > 0 && s.Price == 0:
		return &Error{"price", "a budget without a price says nothing: give also what a worker " +
			"costs an hour, such as --price 2.5"}
	case s.Price > 0 && s.Budget == 0:
		return &Error{"budget", "a price without a budget says nothing: give also what an epoch " +
			"may cost, such as --budget 0.5"}
	case s.Budget > 0 && s.Auto == AutoOff:
		return &Error{"budget", "the size follows a budget only in a job that lets policies " +
			"decide; add --auto, or --auto=watch to see what they would do"}
	case s.Budget > 0 && s.Max == 0:
		return &Error{"budget", "the size does not change without --max, the most workers that " +
			"the job may have"}
	}
	return nil
}

// CheckText returns the *Error of a word of the command or a variable that is no UTF-8, since other
// hosts, which are told in JSON, would get another one; nil = there is none.
func (s Spec) CheckText() error {
	for _, word := range s.Command {
		if !utf8.ValidString(word) {
			return &Error{"command", fmt.Sprintf("the word %q is no UTF-8, and other hosts would "+
				"get another one: give what it names another name", word)}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		if !utf8.ValidString(name) || !utf8.ValidString(s.Env[name]) {
			return &Error{"env", fmt.Sprintf("%q has bytes that are no UTF-8, and other hosts "+
				"would get others: set it in the script, or leave it out", name)}
		}
	}
	return nil
}

// String returns the spec as YAML, in the form that Parse reads.
func (s Spec) String() string {
	text, err := yaml.Marshal(s)
	if err != nil {
		panic(err) // strings, ints and maps of strings always marshal
	}
	return string(text)
}

// workersError returns the Error of a number of workers that one host cannot run.
func workersError(n int) error {
	return &Error{"workers",
		fmt.Sprintf("%d is not a number of workers that one host can run; give 1 to %d", n,
			MaxWorkers)}
}

// dnsLabel matches a name of a host without dots, which a name of a job must be too.
var dnsLabel = pattern.New(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// CheckName returns the *Error of a text that cannot name a job; nil if it can.
func CheckName(name string) error {
	if len(name) > maxName || !dnsLabel.MatchString(name) {
		return &Error{"name",
			fmt.Sprintf("%q cannot name a job, because folders and hosts take the name over; "+
				"use 1 to %d lower-case letters, digits and dashes, with a letter or digit at "+
				"both ends", name, maxName)}
	}
	return nil
}

// setByShoal are the variables by which a worker finds its job and its place there.
var setByShoal = []string{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SHOAL_JOB",
	"SHOAL_JOB_RUN", "SHOAL_RANK", "SHOAL_RUN", "SHOAL_RUNTIME_DIR", "SHOAL_SIZE", "SHOAL_SOCKET",
	"SHOAL_TOKEN"}

// SetByShoal reports whether shoal sets a variable for each worker, or takes it away, so that a job
// cannot choose it. It can choose others, such as SHOAL_NCCL.
func SetByShoal(name string) bool { return slices.Contains(setByShoal, name) }

// checkEnv returns the Error of a variable that a job cannot set; nil if it can.
func checkEnv(key, value string) error {
	switch {
	case key == "" || strings.ContainsAny(key, "=\x00"):
		return &Error{"env",
			fmt.Sprintf("%q cannot name a variable; write KEY=VALUE with a KEY that has no = in it",
				key)}
	case hasNUL(value):
		return &Error{"env", key + " holds a NUL byte, which no program can receive; take it out"}
	case SetByShoal(key):
		return &Error{"env", key +
			" is set by shoal, differently for each worker; take it out of the job"}
	}
	return nil
}

// hasNUL reports whether a text has a NUL byte, which no program can receive.
func hasNUL(s string) bool { return strings.IndexByte(s, 0) >= 0 }
