// Package layouttest has what tests of layouts stand on: random layouts, and an oracle that lays
// tensors out by slicing and joining arrays element by element, as a training framework would. It
// shares no code with package layout. The functions of the oracle change nothing that they are
// given, so tests may call them from any goroutine, and panic where a spec is not valid.
package layouttest

import (
	"encoding/binary"
	"fmt"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"

	"github.com/shoal-ml/shoal/state/layout"
)

// An Element names one element of a logical tensor by its row-major index; Padding is none.
type Element struct{ Tensor, Index int }

// Padding is what lies in memory that belongs to no tensor.
var Padding = Element{-1, -1}

// Bytes returns what tests put in the place of an element of so many bytes, up to 16: another value
// for each element, and zeros for Padding.
func (e Element) Bytes(size int) []byte {
	if e == Padding {
		return make([]byte, size)
	}
	z := uint64(e.Tensor)<<32 + uint64(e.Index) + 0x9E3779B97F4A7C15
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	z ^= z >> 31
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, z), ^z)[:size]
}

// An Array is elements in row-major order.
type Array struct {
	Shape []int
	Data  []Element
}

// ExpectedArrays returns, for each rank, what a spec puts into its memory under which name. The
// spec must be valid.
func ExpectedArrays(spec *layout.Spec, tensors []layout.Tensor) []map[string]Array {
	axes, sizes := parseMesh(spec.Mesh)
	ranks := 1
	for _, n := range sizes {
		ranks *= n
	}
	names, arrays := storeArrays(spec, tensors)
	rules := map[string]placed{}
	for _, name := range names {
		rules[name] = ruleFor(spec, name)
	}
	out := make([]map[string]Array, ranks)
	for rank := range out {
		coords, rest := map[string]int{}, rank
		for i := len(axes) - 1; i >= 0; i-- {
			coords[axes[i]] = rest % sizes[i]
			rest /= sizes[i]
		}
		out[rank] = expectOnRank(rules, names, arrays, axes, sizes, coords)
	}
	return out
}

// expectOnRank returns, by name, what lies in the memory of the rank at some coordinates, by axis;
// names, in their order, arrays and rules are what is stored, and by which rule.
func expectOnRank(rules map[string]placed, names []string, arrays map[string]Array, axes []string,
	sizes []int, coords map[string]int) map[string]Array {
	size := map[string]int{}
	for i, a := range axes {
		size[a] = sizes[i]
	}
	local := map[string]Array{}
	type pending struct {
		array         Array // what is in the bucket so far
		degree, index int   // number of parts, and which of them this rank has
		align         int
	}
	buckets := map[string]*pending{}
next:
	for _, name := range names {
		a := arrays[name]
		for _, s := range rules[name].places {
			degree, index := 1, 0
			for _, axis := range s.axes {
				degree, index = degree*size[axis], index*size[axis]+coords[axis]
			}
			switch s.kind {
			case "at":
				here := false
				for _, text := range s.args {
					here = here || (mustAtoi(text)+degree)%degree == index
				}
				if !here {
					continue next
				}
			case "spread":
				if spreadPosition(s, rules[name].numbers, degree) != index {
					continue next
				}
			case "shard":
				a = shardPart(a, s, degree, index)
			case "flat":
				a = Array{[]int{len(a.Data)}, a.Data}
				align := 1
				if s.named["align"] != "" {
					align = mustAtoi(s.named["align"])
				}
				if len(s.args) == 0 {
					a = flatPart(a, degree, index, align)
					break
				}
				b := buckets[s.args[0]]
				if b == nil {
					b = &pending{Array{[]int{0}, nil}, degree, index, align}
					buckets[s.args[0]] = b
				}
				b.array = concatenate([]Array{b.array, a}, 0)
				continue next
			}
		}
		local[name] = a
	}
	for name, b := range buckets {
		local[name] = flatPart(b.array, b.degree, b.index, b.align)
	}
	return local
}

// flatPart returns the part with an index, of as many as the degree, of a flat array, which is
// padded so that each part is the same multiple of align.
func flatPart(a Array, degree, index, align int) Array {
	each := 0
	for each*degree < len(a.Data) {
		each += align
	}
	return narrow(pad(a, 0, each*degree), 0, index*each, (index+1)*each)
}

// shardPart returns the part with an index, of as many as the degree, of an array that a shard
// placement cuts.
func shardPart(a Array, s place, degree, index int) Array {
	dim := mustAtoi(s.args[0])
	rows := a.Shape[dim]
	blocks := []int{rows}
	if text := s.named["blocks"]; text != "" {
		blocks = nil
		list := strings.Split(text, "/")
		for _, b := range list {
			if len(list) == 1 {
				for range mustAtoi(b) {
					blocks = append(blocks, rows/mustAtoi(b))
				}
			} else {
				blocks = append(blocks, mustAtoi(b))
			}
		}
	}
	unit := 1
	if text := s.named["unit"]; text != "" {
		unit = mustAtoi(text)
	}
	share := "even"
	if len(s.args) > 1 {
		share = s.args[1]
	}
	var parts []Array
	from := 0
	for _, b := range blocks {
		mine := dealRows(b/unit, degree, share)[index]
		parts = append(parts, narrow(a, dim, from+mine[0]*unit, from+mine[1]*unit))
		from += b
	}
	return concatenate(parts, dim)
}

// dealRows deals n rows out to degree ranks one after the other, as the division share says, and
// returns where the rows of each begin and end.
func dealRows(n, degree int, share string) [][2]int {
	out := make([][2]int, degree)
	at := 0
	for i := range out {
		take := 0
		switch {
		case share == "ceil":
			for take*degree < n {
				take++
			}
		case share == "balanced":
			take = n / degree
			if i < n%degree {
				take++
			}
		case share == "repeat" && n < degree:
			out[i] = [2]int{i * n / degree, i*n/degree + 1}
			continue
		default:
			if n%degree != 0 {
				panic(fmt.Sprintf("layouttest: %d rows do not come out even over %d ranks", n,
					degree))
			}
			take = n / degree
		}
		take = min(take, n-at)
		out[i] = [2]int{at, at + take}
		at += take
	}
	return out
}

// spreadPosition returns the position, of degree, at which a spread placement puts the tensor with
// these numbers in its name.
func spreadPosition(s place, numbers []int, degree int) int {
	n, count := numbers[mustAtoi(s.args[0])-1], mustAtoi(s.args[1])
	if text := s.named["cuts"]; text != "" {
		stage := 0
		for _, cut := range strings.Split(text, "/") {
			if n >= mustAtoi(cut) {
				stage++
			}
		}
		return stage
	}
	if len(s.args) > 2 && slices.Contains([]string{"balanced", "contiguous"}, s.args[2]) {
		// Deal out how many each has.
		stage := 0
		for left := 0; ; stage++ {
			left += count / degree
			if stage < count%degree {
				left++
			}
			if n < left {
				return stage
			}
		}
	}
	chunks := degree
	if text := s.named["chunks"]; text != "" {
		chunks = mustAtoi(text)
	}
	return n / (count / chunks) % degree
}

// A place is what a rule says of one axis, or of several that act as one.
type place struct {
	axes  []string
	kind  string
	args  []string
	named map[string]string
}

// A placed is what the rule of a tensor says, and the numbers that # has matched in its name.
type placed struct {
	places  []place
	numbers []int
}

// item matches what a rule says of an axis: the axes, the kind, and the arguments.
var item = regexp.MustCompile(`([a-z*]+)=([a-z]+)(?:\(([^)]*)\))?`)

// ruleFor returns what the first rule that matches a name says.
func ruleFor(spec *layout.Spec, name string) (p placed) {
	for _, r := range spec.Rules {
		caught := matchName(r.Match, name)
		if caught == nil {
			continue
		}
		for _, c := range caught[1:] {
			if n, err := strconv.Atoi(c); err == nil {
				p.numbers = append(p.numbers, n)
			}
		}
		for _, m := range item.FindAllStringSubmatch(r.Place, -1) {
			s := place{axes: strings.Split(m[1], "*"), kind: m[2], named: map[string]string{}}
			for _, arg := range strings.Split(strings.ReplaceAll(m[3], " ", ""), ",") {
				if key, value, ok := strings.Cut(arg, "="); ok {
					s.named[key] = value
				} else if arg != "" {
					s.args = append(s.args, arg)
				}
			}
			p.places = append(p.places, s)
		}
		return p
	}
	panic("layouttest: no rule for " + name)
}

// matchName returns what the wildcards of a pattern match in a name, after the name itself; nil if
// it does not match. Any goroutine may call it.
func matchName(pattern, name string) []string {
	e, ok := expressions.Load(pattern)
	if !ok {
		p := strings.NewReplacer(`\*\*`, `(.*?)`, `\*`, `([^.]*?)`, `#`,
			`(\d+)`).Replace(regexp.QuoteMeta(pattern))
		e, _ = expressions.LoadOrStore(pattern, regexp.MustCompile("^"+p+"$"))
	}
	return e.(*regexp.Regexp).FindStringSubmatch(name)
}

// expressions keeps what patterns compile to: compiling takes longer than all else here.
var expressions sync.Map

// storeArrays joins, stacks and pads what the spec says, and returns the stored arrays and their
// names in the order of the first part of each.
func storeArrays(spec *layout.Spec, tensors []layout.Tensor) (names []string,
	arrays map[string]Array) {
	type join struct {
		store layout.Store
		rows  map[int][]Array // by the stacked number
	}
	joins := map[string]*join{}
	arrays = map[string]Array{}
	for i, t := range tensors {
		name, number, entry := storedAs(spec, t.Name)
		if entry < 0 {
			names = append(names, t.Name)
			arrays[t.Name] = wholeTensor(tensors, i)
			continue
		}
		if joins[name] == nil {
			names = append(names, name)
			joins[name] = &join{spec.Store[entry], map[int][]Array{}}
		}
		// The catalogues of these tests list the parts of a tensor in the order in which specs name
		// them.
		joins[name].rows[number] = append(joins[name].rows[number], wholeTensor(tensors, i))
	}
	for name, j := range joins {
		arrays[name] = joinParts(j.store, j.rows)
	}
	return names, arrays
}

// storedAs returns the name under which a tensor is stored, its stacked number, and the entry that
// says so, -1 for none.
func storedAs(spec *layout.Spec, tensor string) (name string, number, entry int) {
	for e, s := range spec.Store {
		for _, p := range s.Parts {
			if caught := matchName(p, tensor); caught != nil {
				kept, number := splitStacked(p, caught[1:], s.Stack)
				return fillPattern(s.Name, kept), number, e
			}
		}
	}
	return "", 0, -1
}

// joinParts returns the array that a store makes of its parts. They are given by their stacked
// number, in the order of s.Parts.
func joinParts(s layout.Store, parts map[int][]Array) Array {
	var numbers []int
	for n := range parts {
		numbers = append(numbers, n)
	}
	sort.Ints(numbers)
	var levels []Array
	for _, n := range numbers {
		var pieces []Array
		if s.Units == nil {
			pieces = parts[n]
		} else {
			for g := range parts[n][0].Shape[s.Dim] / s.Units[0] {
				for p, a := range parts[n] {
					pieces = append(pieces, narrow(a, s.Dim, g*s.Units[p], (g+1)*s.Units[p]))
				}
			}
		}
		a := concatenate(pieces, s.Dim)
		if s.Stack > 0 {
			a.Shape = append([]int{1}, a.Shape...)
		}
		levels = append(levels, a)
	}
	a := levels[0]
	if s.Stack > 0 {
		a = concatenate(levels, 0)
	}
	if s.Pad != nil {
		n := a.Shape[s.Pad.Dim]
		for n%s.Pad.Multiple != 0 {
			n++
		}
		a = pad(a, s.Pad.Dim, n)
	}
	return a
}

// wildcard matches a wildcard of a pattern.
var wildcard = regexp.MustCompile(`\*\*|\*|#`)

// splitStacked takes the number that the stack-th # caught out of what a pattern caught, and
// returns both; 0 where stack is 0.
func splitStacked(pattern string, caught []string, stack int) (kept []string, number int) {
	n := 0
	for i, wild := range wildcard.FindAllString(pattern, -1) {
		if wild == "#" {
			if n++; n == stack {
				number = mustAtoi(caught[i])
				continue
			}
		}
		kept = append(kept, caught[i])
	}
	return kept, number
}

// fillPattern returns a pattern with its wildcards replaced by texts.
func fillPattern(pattern string, caught []string) string {
	return wildcard.ReplaceAllStringFunc(pattern, func(string) string {
		c := caught[0]
		caught = caught[1:]
		return c
	})
}

// parseMesh reads the axes of a mesh and their sizes.
func parseMesh(text string) (axes []string, sizes []int) {
	for _, a := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' }) {
		name, size, _ := strings.Cut(a, "=")
		axes, sizes = append(axes, name), append(sizes, mustAtoi(size))
	}
	return axes, sizes
}

// mustAtoi reads a number, and panics for anything else.
func mustAtoi(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		panic("layouttest: " + err.Error())
	}
	return n
}
