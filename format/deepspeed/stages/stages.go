// Package stages divides the layers of a pipeline among stages as DeepSpeed's PipelineModule does,
// and finds out in which of its ways a checkpoint was divided. Its functions are pure.
package stages

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// TiedPrefix begins the names of parameters that several layers share.
const TiedPrefix = "tied_modules."

// maxGroups bounds the layers of a pipeline that is divided anew.
const maxGroups = 1 << 16

// maxLayers bounds the layers of a pipeline for which shoal finds out how DeepSpeed cuts them.
const maxLayers = 512

// A pipeline is a pipeline that is divided anew. It does no I/O, and is for one goroutine: that of
// the call of Recut that made it.
type pipeline struct {
	// Names are, for each group, the parameters of each unit, in order. A unit is a layer, or what
	// tied layers share.
	names  []map[string][]string
	layers []string // unit of each layer; "" = a layer without parameters
	// Weight is the number of elements of each layer on a rank: of the ranks that it was trained
	// on, and of those that it is for.
	weight [2][]int
	kinds  []string // text that is equal for layers of the same parameters
	hidden int      // number of last layers that are tied, and have no file
	// whether each stage of the training run had each layer with parameters, by stage and layer.
	stages [][]bool
}

// Recut divides a pipeline among pp stages, and returns the parameters of each stage and group.
// groups are the parameters of the training run, by stage and group, in their order; tied are the
// layers that share parameters, by key. elements returns how many elements of a parameter a rank
// has, and first whether the first rank has the parameter: of the ranks that it was trained on, and
// of those that it is for. starts are the layers with which the stages after the first begin; nil
// means as DeepSpeed would divide them.
func Recut(groups [][][]string, tied map[string][]int, elements func(name string) int,
	first func(name string) [2]bool, pp int, starts []int) ([][][]string, error) {
	p, err := newPipeline(groups, tied, elements, first, pp)
	if err != nil {
		return nil, err
	}
	all := append([]int{0}, starts...)
	if starts == nil {
		if all, err = p.findStarts(pp); err != nil {
			return nil, err
		}
	}
	// Functions before the hidden layers have left no trace.
	last := all[len(all)-1]
	if n := len(p.layers) - p.hidden; p.hidden > 0 && last > n && last < maxGroups {
		p.layers = slices.Insert(p.layers, n, make([]string, last-n)...)
	}
	if len(all) != pp || !slices.IsSorted(all) || last >= len(p.layers) {
		return nil, fmt.Errorf("%d stages of %d layers cannot begin with the layers %v", pp,
			len(p.layers), all)
	}
	return p.groupsByStage(append(all, len(p.layers))), nil
}

// LayerOf returns the layer of a parameter or a buffer of a pipeline, and its name there; layer -1
// and the whole name if it belongs to no layer.
func LayerOf(name string) (layer int, rest string) {
	number, rest, _ := strings.Cut(name, ".")
	layer, err := strconv.Atoi(number)
	if err != nil {
		return -1, name
	}
	return layer, rest
}

// TiedKey returns the key of the layers that share a parameter, "" for a parameter of one layer.
func TiedKey(name string) string {
	rest, is := strings.CutPrefix(name, TiedPrefix)
	key, _, ok := strings.Cut(rest, ".")
	if !is || !ok {
		return ""
	}
	return key
}

// UnitOf returns the unit of a parameter: its layer, or what tied layers share.
func UnitOf(name string) string {
	if key := TiedKey(name); key != "" {
		return TiedPrefix + key
	}
	layer, _, _ := strings.Cut(name, ".")
	return layer
}

// newPipeline finds out which layers a pipeline has. Parameters are in the order of DeepSpeed's
// module: what is tied comes first, then layer by layer.
func newPipeline(groups [][][]string, tied map[string][]int, count func(string) int,
	first func(string) [2]bool, pp int) (*pipeline, error) {
	p := &pipeline{}
	elements, like := map[string]*[2]int{}, map[string][]string{}
	for s, own := range groups {
		for g, names := range own {
			for len(p.names) <= g {
				p.names = append(p.names, map[string][]string{})
			}
			last, seen := -1, map[string][]string{}
			for i, name := range names {
				unit := UnitOf(name)
				layer, _ := LayerOf(name)
				if layer >= 1<<20 || layer < 0 && TiedKey(name) == "" {
					return nil, fmt.Errorf("parameter %q is of no layer of the pipeline", name)
				}
				if layer < last || seen[unit] != nil && UnitOf(names[i-1]) != unit {
					return nil, fmt.Errorf("the parameters of stage %d are not in the order of "+
						"its layers (%q), so their order in other stages is not known; choose "+
						"universal", s, name)
				}
				last = max(last, layer)
				seen[unit] = append(seen[unit], name)
			}
			for unit, list := range seen {
				if p.names[g][unit] == nil {
					p.names[g][unit] = list
					if elements[unit] == nil {
						elements[unit] = &[2]int{}
					}
					for _, name := range list {
						for i, is := range first(name) {
							if is {
								elements[unit][i] += count(name)
							}
						}
						_, rest, _ := strings.Cut(strings.TrimPrefix(name, TiedPrefix), ".")
						like[unit] = append(like[unit], fmt.Sprint(g, rest, count(name)))
					}
				}
			}
		}
	}
	if err := p.findUnits(groups, tied, pp); err != nil {
		return nil, err
	}
	if len(p.layers) > maxGroups || len(p.layers)*len(groups) > 1<<24 {
		return nil, fmt.Errorf("it has %d stages of %d layers, which shoal does not cut anew",
			len(groups), len(p.layers))
	}
	for _, unit := range p.layers {
		for i := range p.weight {
			n := 0
			if of := elements[unit]; of != nil {
				n = of[i]
			}
			p.weight[i] = append(p.weight[i], n)
		}
		p.kinds = append(p.kinds, strings.Join(like[unit], " "))
	}
	p.recordTrainedStages(groups)
	return p, nil
}

// recordTrainedStages records which layers with parameters each stage of the training run had.
// groups are as Recut takes them.
func (p *pipeline) recordTrainedStages(groups [][][]string) {
	for _, own := range groups {
		has := make([]bool, len(p.layers))
		for _, name := range slices.Concat(own...) {
			if layer, _ := LayerOf(name); layer >= 0 {
				has[layer] = true
			}
		}
		p.stages = append(p.stages, has)
	}
}

// findUnits finds out which unit each layer is, and sets layers and hidden. A tied layer has no
// file where a stage gives it a function of its own, and none has with experts. Such a layer of the
// last stage counts as the last layer; in an earlier stage it is the one layer that is left.
func (p *pipeline) findUnits(groups [][][]string, tied map[string][]int, pp int) error {
	put := func(layer int, unit string) {
		for len(p.layers) <= layer {
			p.layers = append(p.layers, "")
		}
		p.layers[layer] = unit
	}
	ends := make([]int, len(groups)) // of each stage, the last layer that is not tied
	for s, own := range groups {
		ends[s] = -1
		if s > 0 {
			ends[s] = ends[s-1]
		}
		for _, name := range slices.Concat(own...) {
			if layer, _ := LayerOf(name); layer >= 0 {
				put(layer, UnitOf(name))
				ends[s] = max(ends[s], layer)
			}
		}
	}
	var hidden []string
	taken := map[int]bool{} // layers that are tied, by a stage
	for s, own := range groups {
		from, to := -1, math.MaxInt
		if s > 0 {
			from = ends[s-1]
		}
		if s < len(groups)-1 {
			to = firstLayer(groups[s+1])
		}
		seen := map[string]bool{}
		for _, name := range slices.Concat(own...) {
			key := TiedKey(name)
			if key == "" || seen[key] {
				continue
			}
			here := 0
			seen[key] = true
			for _, layer := range tied[key] {
				between := layer > ends[s] || ends[s] == from // it can be of the next stage too
				if put(layer, TiedPrefix+key); !taken[layer] && layer > from && layer < to &&
					!(here > 0 && between && countTied(groups[s+1:], key) > 0) {
					taken[layer] = true
					here++
				}
			}
			switch {
			case here > 0 && (len(tied[key]) > 1 || pp == 1 || countTied(groups, key) > 1):
			case here == 0 && s == len(groups)-1 &&
				(len(tied[key]) > 0 || countTied(groups, key) > 1):
				hidden = append(hidden, TiedPrefix+key)
			case here == 0 && s < len(groups)-1 && p.singleGap(from, to) >= 0:
				put(p.singleGap(from, to), TiedPrefix+key)
			default:
				return fmt.Errorf("which layers are tied as %q is not known, as not all have "+
					"files: a stage that gives one a function of its own writes none, and with "+
					"experts there are none; choose as many stages as there were, or universal",
					key)
			}
		}
	}
	for _, unit := range hidden {
		put(len(p.layers), unit)
	}
	p.hidden = len(hidden)
	return nil
}

// firstLayer returns the first layer that a stage has alone; the largest number if it has none.
// own are the parameters of its groups.
func firstLayer(own [][]string) (first int) {
	first = math.MaxInt
	for _, name := range slices.Concat(own...) {
		if layer, _ := LayerOf(name); layer >= 0 {
			first = min(first, layer)
		}
	}
	return first
}

// singleGap returns the one layer between two that no stage has; -1 if there is none, or several.
// It can also be a function.
func (p *pipeline) singleGap(from, to int) (layer int) {
	layer = -1
	for l := from + 1; l < min(to, len(p.layers)); l++ {
		if p.layers[l] == "" && layer >= 0 {
			return -1
		}
		if p.layers[l] == "" {
			layer = l
		}
	}
	return layer
}

// countTied counts the stages that have what is tied by a key.
func countTied(groups [][][]string, key string) (n int) {
	for _, own := range groups {
		if slices.ContainsFunc(slices.Concat(own...), func(name string) bool {
			return TiedKey(name) == key
		}) {
			n++
		}
	}
	return n
}

// groupsByStage returns the parameters of each stage and group, for stages that begin with some
// layers; the last of starts is the number of layers.
func (p *pipeline) groupsByStage(starts []int) (all [][][]string) {
	for s := range len(starts) - 1 {
		var ties, own []string
		for _, unit := range p.layers[starts[s]:starts[s+1]] {
			if unit == "" || slices.Contains(ties, unit) {
				continue
			}
			if strings.HasPrefix(unit, TiedPrefix) {
				ties = append(ties, unit)
			} else {
				own = append(own, unit)
			}
		}
		groups := make([][]string, len(p.names))
		for g := range groups {
			for _, unit := range append(ties, own...) {
				groups[g] = append(groups[g], p.names[g][unit]...)
			}
		}
		all = append(all, groups)
	}
	return all
}

// findStarts returns the layers with which pp stages begin, as DeepSpeed's PipelineModule divides
// them: by those of its ways that give the stages of the training run.
func (p *pipeline) findStarts(pp int) ([]int, error) {
	if pp == 1 {
		return []int{0}, nil
	}
	if len(p.layers) > maxLayers {
		return nil, fmt.Errorf("it has %d layers, too many to find out how DeepSpeed cuts them; "+
			"say with which those after the first begin (--stages)", len(p.layers))
	}
	var found []int
	ways := p.divisions(p.weight[1])
	for i, cut := range p.divisions(p.weight[0]) {
		if !p.matchesTrained(cut(len(p.stages))) {
			continue
		}
		starts := ways[i](pp)
		if found != nil && !p.isSameDivision(found, starts) {
			return nil, fmt.Errorf("its %d stages could be cut as %d in several ways, beginning "+
				"with the layers %v or %v; say which (--stages, without the first)", len(p.stages),
				pp, found, starts)
		}
		found = starts
	}
	if found == nil {
		return nil, errors.New("its stages are cut in none of DeepSpeed's ways that shoal " +
			"knows; say with which layers those after the first are to begin (--stages)")
	}
	return found, nil
}

// divisions returns the ways in which PipelineModule divides layers of some weights among a number
// of stages, as functions that return the first layer of each: by parameters, evenly, and by a
// type, which is that of most layers here. Functions after the last layer with parameters count for
// the second, and leave no trace.
func (p *pipeline) divisions(weight []int) (all []func(int) []int) {
	for more := range 3 {
		all = append(all, func(stages int) []int {
			return UniformStarts(len(p.layers)+more, stages)
		})
	}
	alike := map[string]int{}
	for _, l := range p.kinds {
		if l != "" {
			alike[l]++
		}
	}
	most := ""
	for l, n := range alike {
		if c := cmp.Compare(n, alike[most]); c > 0 || c == 0 && l < most {
			most = l
		}
	}
	typed := make([]int, len(p.kinds))
	for i, l := range p.kinds {
		if l == most {
			typed[i] = 1
		}
	}
	for _, weights := range [][]int{weight, typed} {
		all = append(all, func(stages int) []int { return BalancedStarts(weights, stages) })
	}
	return all
}

// matchesTrained reports whether stages that begin with some layers are those of the training run.
// starts are these layers.
func (p *pipeline) matchesTrained(starts []int) bool {
	for s, has := range p.stages {
		for layer, is := range has {
			if in := layer >= starts[s] && (s == len(starts)-1 || layer < starts[s+1]); is && !in {
				return false
			}
		}
	}
	return true
}

// isSameDivision reports whether stages that begin with the layers a have the same layers with
// parameters as those that begin with b.
func (p *pipeline) isSameDivision(a, b []int) bool {
	for s := range a {
		for _, unit := range p.layers[min(a[s], b[s], len(p.layers)):min(max(a[s], b[s]),
			len(p.layers))] {
			if unit != "" {
				return false
			}
		}
	}
	return true
}

// UniformStarts divides layers evenly, and returns the first layer of each stage: the first stages
// have one more if the number is not a multiple.
func UniformStarts(layers, stages int) (starts []int) {
	for s := range stages {
		starts = append(starts, s*(layers/stages)+min(s, layers%stages))
	}
	return starts
}

// BalancedStarts divides layers so that the heaviest stage and the lightest differ least, and
// returns the first layer of each stage. It decides as DeepSpeed does: the best cut of the first i
// layers in j stages is that of fewer in j-1, and the rest; of several that are as good the last
// counts.
func BalancedStarts(weights []int, stages int) (starts []int) {
	n := len(weights)
	if n <= stages {
		return UniformStarts(n, stages)
	}
	type best struct{ most, least, from int }
	sums := make([]int, n+1)
	for i, w := range weights {
		sums[i+1] = sums[i] + w
	}
	before, all := make([]best, n+1), [][]best{}
	for j := 1; j <= stages; j++ {
		row := make([]best, n+1)
		for i := j; i <= n; i++ {
			first := true
			for from := j - 1; from < i; from++ {
				sum := sums[i] - sums[from]
				b := best{sum, sum, from}
				if j > 1 {
					b.most, b.least = max(sum, before[from].most), min(sum, before[from].least)
				} else if from > 0 {
					break
				}
				if first || b.most-b.least <= row[i].most-row[i].least {
					row[i], first = b, false
				}
			}
		}
		before = row
		all = append(all, row)
	}
	starts = make([]int, stages)
	for i, j := n, stages; j > 0; j-- {
		i = all[j-1][i].from
		starts[j-1] = i
	}
	return starts
}
