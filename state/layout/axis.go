package layout

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/internal/spelling"
	"github.com/shoal-ml/shoal/topo"
)

// An Axis is one dimension of a mesh, and what a plan says of the positions on it. In the text of a
// mesh the attributes stand in parentheses, as in pp=4(6/8/8/10;micro=4;ahead=6/4/3/1).
type Axis struct {
	Name string
	Size int // number of positions
	// Shares are what each position has of what is spread over the axis, such as the layers of each
	// pipeline stage; of samples, over dp, a position has its share of the sum. nil = all the same.
	Shares []int
	Micro  int // samples of a micro-batch; 0 = as the program says
	// Ahead is, by pipeline stage, of how many micro-batches it holds what their backward passes
	// need; nil = as the program says, which is one more for each stage behind it (1F1B).
	Ahead []int
	// Chunks is how many chunks of what is spread each position has, dealt round and round; 0 = 1.
	Chunks int
	// On is the kind of host on which each position is to be, such as a100; nil = on any.
	On []string
}

// axisName matches the name of an axis.
var axisName = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

// attributes are the names that attributes of an axis have; shares have none.
var attributes = []string{"micro", "ahead", "chunks", "on"}

// parseAxis reads the form "pp=4" or "pp=2(8/6;micro=4;ahead=3/1)".
func parseAxis(text string) (a Axis, err error) {
	name, size, ok := strings.Cut(text, "=")
	size, inside, called := strings.Cut(size, "(")
	n, err := parseInteger(strings.TrimSpace(size), 0)
	if !ok || err != nil {
		return a, fmt.Errorf("%q is not of the form axis=size, such as tp=8", text)
	}
	a.Name, a.Size = strings.TrimSpace(name), n
	if !called {
		return a, nil
	}
	inside, closed := strings.CutSuffix(strings.TrimSpace(inside), ")")
	if !closed || strings.ContainsAny(inside, "()") {
		return a, fmt.Errorf("%q does not end in one closing bracket", text)
	}
	seen := map[string]bool{}
	for _, item := range strings.Split(inside, ";") {
		key, value, named := strings.Cut(item, "=")
		if !named {
			key, value = "", item
		}
		if key = strings.TrimSpace(key); seen[key] {
			return a, fmt.Errorf("axis %s: %s twice", a.Name, attributeText(key))
		}
		seen[key] = true
		if err := a.setAttribute(key, value); err != nil {
			return a, fmt.Errorf("axis %s: %w", a.Name, err)
		}
	}
	return a, nil
}

// attributeText names an attribute for people; "" is that of shares.
func attributeText(key string) string {
	if key == "" {
		return "shares"
	}
	return key
}

// setAttribute sets an attribute from its text; the key of shares is "". Only parseAxis calls it.
func (a *Axis) setAttribute(key, value string) (err error) {
	switch key {
	case "":
		a.Shares, err = a.parseList("shares", value, 0)
	case "ahead":
		a.Ahead, err = a.parseList("ahead", value, 1)
	case "micro":
		a.Micro, err = parseCount(key, value)
	case "chunks":
		a.Chunks, err = parseCount(key, value)
	case "on":
		a.On, err = a.parseKinds(value)
	default:
		return fmt.Errorf("no attribute %q%s; there are shares, such as 3/1, and %s", key,
			spelling.Meant(key, attributes), strings.Join(attributes, ", "))
	}
	return err
}

// parseCount reads the number of the attribute key from its text.
func parseCount(key, text string) (int, error) {
	n, err := parseInteger(strings.TrimSpace(text), 1)
	if err == nil && n > maxShare {
		err = fmt.Errorf("%s is %d; it is at most %d", key, n, maxShare)
	}
	return n, err
}

// parseList reads a number for each position of the axis from a text, none of them below least;
// what names the numbers in errors.
func (a *Axis) parseList(what, text string, least int) ([]int, error) {
	list, err := parseIntegers(text, least)
	if err == nil && len(list) != a.Size {
		err = fmt.Errorf("%s are %d numbers, and the axis has %d positions", what, len(list),
			a.Size)
	}
	if err == nil && slices.Max(list) == 0 {
		err = fmt.Errorf("%s are all 0", what)
	}
	if err == nil && slices.Max(list) > maxShare {
		err = fmt.Errorf("%s have %d; each is at most %d", what, slices.Max(list), maxShare)
	}
	return list, err
}

// parseKinds reads a kind of host for each position of the axis.
func (a *Axis) parseKinds(text string) (list []string, err error) {
	for _, kind := range strings.Split(text, "/") {
		kind = strings.TrimSpace(kind)
		if err := topo.CheckKind(kind); err != nil {
			return nil, err
		}
		list = append(list, kind)
	}
	if len(list) != a.Size {
		return nil, fmt.Errorf("on are %d kinds of hosts, and the axis has %d positions", len(list),
			a.Size)
	}
	return list, nil
}

// maxShare bounds the numbers of attributes, so that sums and products do not overflow.
const maxShare = 1 << 30

// WithSize returns the axis with so many positions. Unless it has so many already, that is without
// its attributes, which are for the number that it has.
func (a Axis) WithSize(n int) Axis {
	if n == a.Size {
		return a
	}
	return Axis{Name: a.Name, Size: n}
}

// String writes the form that ParseMesh reads.
func (a Axis) String() string {
	text := a.Name + "=" + strconv.Itoa(a.Size)
	var parts []string
	if a.Shares != nil {
		parts = append(parts, joinIntegers(a.Shares))
	}
	if a.Micro > 0 {
		parts = append(parts, "micro="+strconv.Itoa(a.Micro))
	}
	if a.Ahead != nil {
		parts = append(parts, "ahead="+joinIntegers(a.Ahead))
	}
	if a.Chunks > 0 {
		parts = append(parts, "chunks="+strconv.Itoa(a.Chunks))
	}
	if a.On != nil {
		parts = append(parts, "on="+strings.Join(a.On, "/"))
	}
	if parts == nil {
		return text
	}
	return text + "(" + strings.Join(parts, ";") + ")"
}

// joinIntegers writes a list as parseIntegers reads it.
func joinIntegers(list []int) string {
	parts := make([]string, len(list))
	for i, n := range list {
		parts[i] = strconv.Itoa(n)
	}
	return strings.Join(parts, "/")
}

// validate fails for what no axis can be, or contradicts itself.
func (a Axis) validate() error {
	switch {
	case !axisName.MatchString(a.Name):
		return fmt.Errorf("axis %q: a name has small letters, digits and _, and begins with a "+
			"letter", a.Name)
	case a.Size < 1 || a.Size > MaxRanks:
		return fmt.Errorf("axis %s has size %d; it must be between 1 and %d", a.Name, a.Size,
			MaxRanks)
	case a.Shares != nil && a.Chunks > 0:
		return fmt.Errorf("axis %s: shares and chunks contradict each other: chunks are dealt "+
			"alike", a.Name)
	}
	for i := 1; i < len(a.Ahead); i++ {
		if a.Ahead[i] > a.Ahead[i-1] {
			return fmt.Errorf("axis %s: ahead=%s must not ascend: stage %d would wait for ever "+
				"for micro-batches that the one before it holds back", a.Name,
				joinIntegers(a.Ahead), i)
		}
	}
	return nil
}

// positionOf returns on which position of the axis number n of count numbers lies, by the shares of
// the axis, which must add up to count; n is below that.
func (a Axis) positionOf(n, count int) (int, error) {
	sum, position := 0, -1
	for i, share := range a.Shares {
		if sum += share; n < sum && position < 0 {
			position = i
		}
	}
	if sum != count {
		return 0, fmt.Errorf("%s: its shares are %d in all, and there are %d to spread", a, sum,
			count)
	}
	return position, nil
}
