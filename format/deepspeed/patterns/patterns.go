// Package patterns matches names with lists of regular expressions as Python's re.match does,
// within a bound of time.
package patterns

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
)

// A List is a list of patterns. They match names as Python's re.match does: from the beginning on,
// to wherever they end. It does no I/O. Match changes it too: all lists of one Effort are for one
// goroutine at a time.
type List struct {
	Key   string   // name of the list
	Texts []string // the patterns
	Used  []bool   // whether each has fitted any name

	exact  map[string][]int // patterns that fit a single name, such as ^a\.b$, by that name
	loose  []expression     // all others
	name   string           // name of the list in messages
	effort *Effort
}

// NewList returns an empty list of the lists that share an effort. key is its name.
func NewList(key string, effort *Effort) *List {
	return &List{Key: key, name: effort.what + "." + key, exact: map[string][]int{}, effort: effort}
}

// IsExact reports whether every pattern of the list fits a single name.
func (l *List) IsExact() bool { return len(l.loose) == 0 }

// An expression is a pattern that can match several names.
type expression struct {
	*regexp.Regexp
	index int // index in Texts
	steps int // instructions of its program
}

// MaxBytes bounds a pattern, in bytes.
const MaxBytes = 4096

// An Effort bounds what the patterns of a checkpoint may cost. It is for the goroutine of its
// lists.
type Effort struct {
	what     string // what holds the lists, for messages
	patterns int    // patterns that are left
	steps    int    // instructions of programs that are left
	matching int    // instructions times bytes of names that are left
}

// NewEffort bounds the patterns of a checkpoint: DeepSpeed's AutoTP has one for each parameter, and
// programs that write some by hand have dozens.
func NewEffort(what string) *Effort {
	return &Effort{what: what, patterns: 1 << 20, steps: 1 << 20, matching: 1 << 32}
}

// CheckLeft fails when the patterns have cost more than the bound.
func (e *Effort) CheckLeft() error {
	if e.patterns < 0 || e.steps < 0 || e.matching < 0 {
		return fmt.Errorf("%s: these are more patterns, or longer ones, than shoal tries on the "+
			"names of a checkpoint", e.what)
	}
	return nil
}

// Add adds a pattern, and counts it against the effort. It fails on a pattern that Go's regular
// expressions lack, or treat differently from Python's.
func (l *List) Add(text string) error {
	left := l.effort
	fail := func(why any) error {
		return fmt.Errorf("%s: the pattern %.200q: %v", l.name, text, why)
	}
	if left.patterns--; left.patterns < 0 {
		return left.CheckLeft()
	}
	if len(text) > MaxBytes {
		return fail(fmt.Sprintf("it has %d bytes, the limit is %d", len(text), MaxBytes))
	}
	for _, x := range []string{"{,", "[:"} {
		if strings.Contains(text, x) {
			return fail("shoal takes " + x + " otherwise than Python")
		}
	}
	tree, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return fail(err)
	}
	n := len(l.Texts)
	l.Texts, l.Used = append(l.Texts, text), append(l.Used, false)
	if name, single := literalName(tree); single {
		l.exact[name] = append(l.exact[name], n)
		return nil
	}
	program, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return fail(err)
	}
	if left.steps -= len(program.Inst); left.steps < 0 {
		return left.CheckLeft()
	}
	is, err := regexp.Compile(`\A(?:` + text + `)`)
	if err != nil {
		return fail(err)
	}
	l.loose = append(l.loose, expression{is, n, len(program.Inst)})
	return nil
}

// literalName returns the only name that an expression matches; false when it can match others.
func literalName(tree *syntax.Regexp) (name string, single bool) {
	last := len(tree.Sub) - 1
	if tree.Op != syntax.OpConcat || last < 1 || tree.Sub[0].Op != syntax.OpBeginText ||
		tree.Sub[last].Op != syntax.OpEndText {
		return "", false
	}
	for _, x := range tree.Sub[1:last] {
		if x.Op != syntax.OpLiteral || x.Flags&syntax.FoldCase != 0 {
			return "", false
		}
		name += string(x.Rune)
	}
	return name, true
}

// Match returns the indices of the patterns that match a name, ascending, and marks them as used.
// What it costs counts against the effort; it fails when that is spent.
func (l *List) Match(name string) (fitting []int, err error) {
	left := l.effort
	if len(l.loose) > 0 && strings.ContainsFunc(name, func(c rune) bool {
		return c < ' ' || c > '~'
	}) {
		return nil, fmt.Errorf("%s: in its name are other letters than ASCII's, which shoal "+
			"takes otherwise than Python", l.name)
	}
	fitting = slices.Clone(l.exact[name])
	for _, e := range l.loose {
		if left.matching -= e.steps * max(len(name), 1); left.matching < 0 {
			return nil, left.CheckLeft()
		}
		if e.MatchString(name) {
			fitting = append(fitting, e.index)
		}
	}
	slices.Sort(fitting)
	for _, i := range fitting {
		l.Used[i] = true
	}
	return fitting, nil
}
