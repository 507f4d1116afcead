package deepspeed

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
)

// patterns are those of a list. They fit names as Python's re.match has it: from the beginning on,
// to wherever they end.
type patterns struct {
	key   string // of the list
	texts []string
	exact map[string][]int // those that fit a single name, such as ^a\.b$, by that
	loose []expression
	used  []bool // whether one has fitted any name
}

// expression is a pattern that can fit several names.
type expression struct {
	*regexp.Regexp
	index int
	steps int // of its program
}

// longPattern bounds a pattern, in bytes.
const longPattern = 4096

// effort is what the patterns of a checkpoint may still cost.
type effort struct {
	patterns int
	steps    int // of all expressions
	matching int // steps times bytes of names
}

// newEffort bounds the patterns of a checkpoint: DeepSpeed's AutoTP has one for each parameter, and
// programs that write some by hand have dozens.
func newEffort() *effort { return &effort{patterns: 1 << 20, steps: 1 << 20, matching: 1 << 32} }

// spent fails when there was too much to do.
func (e *effort) spent() error {
	if e.patterns < 0 || e.steps < 0 || e.matching < 0 {
		return fmt.Errorf("%s: these are more patterns, or longer ones, than shoal tries on the "+
			"names of a checkpoint", infoKey)
	}
	return nil
}

// add adds a pattern. It fails on one that Go's regular expressions lack, or take otherwise than
// Python's.
func (l *patterns) add(text string, left *effort) error {
	fail := func(why any) error {
		return fmt.Errorf("%s.%s: the pattern %.200q: %v", infoKey, l.key, text, why)
	}
	if left.patterns--; left.patterns < 0 {
		return left.spent()
	}
	if len(text) > longPattern {
		return fail(fmt.Sprintf("it has %d bytes, the limit is %d", len(text), longPattern))
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
	n := len(l.texts)
	l.texts, l.used = append(l.texts, text), append(l.used, false)
	if name, single := literal(tree); single {
		l.exact[name] = append(l.exact[name], n)
		return nil
	}
	program, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return fail(err)
	}
	if left.steps -= len(program.Inst); left.steps < 0 {
		return left.spent()
	}
	is, err := regexp.Compile(`\A(?:` + text + `)`)
	if err != nil {
		return fail(err)
	}
	l.loose = append(l.loose, expression{is, n, len(program.Inst)})
	return nil
}

// literal returns the single name that an expression fits; false when it can fit others.
func literal(tree *syntax.Regexp) (name string, single bool) {
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

// fit returns the patterns that fit a name, in their order.
func (l *patterns) fit(name string, left *effort) (fitting []int, err error) {
	if len(l.loose) > 0 && strings.ContainsFunc(name, func(c rune) bool {
		return c < ' ' || c > '~'
	}) {
		return nil, fmt.Errorf("%s.%s: in its name are other letters than ASCII's, which shoal "+
			"takes otherwise than Python", infoKey, l.key)
	}
	fitting = slices.Clone(l.exact[name])
	for _, e := range l.loose {
		if left.matching -= e.steps * max(len(name), 1); left.matching < 0 {
			return nil, left.spent()
		}
		if e.MatchString(name) {
			fitting = append(fitting, e.index)
		}
	}
	slices.Sort(fitting)
	for _, i := range fitting {
		l.used[i] = true
	}
	return fitting, nil
}
