package deepspeed

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/pickle"
)

// This file divides experts among the ranks of a ZeRO checkpoint: one goroutine, no I/O.

// epName is the name of a group of experts in DeepSpeed's optimizer and among its processes,
// followed by the expert parallel size.
const epName = "ep_size_"

// A mixture says which ranks have which experts in a checkpoint that is laid out; nil for a model
// without experts. planMixture makes it; later nothing changes it, so that any goroutine may call
// its methods, which do no I/O.
type mixture struct {
	ranks   int            // expert parallel ranks
	trained int            // expert parallel ranks of the training run; 0 = unknown
	numbers map[string]int // number of experts, by the prefix of their names
	// the prefixes, in the order of the files; each stage of a pipeline numbers its own, from 0
	layers []string
	// whether tensor parallel ranks have experts of their own, and none a part of one
	single    bool
	dataFirst bool // whether neighbours have the same experts
}

// planMixture finds out how the experts among the tensors are laid out over ranks; nil without any.
func (z Zero) planMixture(tensors []format.Tensor, values []format.Value) (*mixture, error) {
	m := &mixture{ranks: max(z.EP, 1), numbers: map[string]int{}}
	for _, t := range tensors {
		_, param := parameterOf(t.Name)
		if name := expertName.FindStringSubmatch(param); name != nil {
			n, err := strconv.Atoi(name[2])
			if err != nil || n > 1<<20 {
				return nil, fmt.Errorf("tensor %q: an expert of such a number", t.Name)
			}
			m.numbers[name[1]] = max(m.numbers[name[1]], n+1)
		}
	}
	if len(m.numbers) == 0 {
		if m.ranks > 1 {
			return nil, errors.New("there are no experts of DeepSpeed's own layer " +
				"(deepspeed_moe) that expert parallel ranks could have; leave out ep")
		}
		return nil, nil
	}
	switch tp := max(z.TP, 1); {
	case z.Stage == 3 && z.PP > 0:
		return nil, errors.New("DeepSpeed itself trains no experts (deepspeed.moe) in a " +
			"pipeline with ZeRO of stage 3; choose zero1")
	case z.Stage == 3:
		return nil, errors.New("DeepSpeed itself trains no experts (deepspeed.moe) with ZeRO of " +
			"stage 3; choose zero1 or zero2")
	default:
		if m.single = tp > 1 && !m.cutsExperts(values); !m.single {
			tp = 1
		}
		if z.DP*tp%m.ranks != 0 {
			return nil, fmt.Errorf("%d ranks are no multiple of %d expert parallel ones, which "+
				"they are at the same time", z.DP*tp, m.ranks)
		}
		if m.single && m.ranks%tp != 0 {
			return nil, fmt.Errorf("without tensor parallelism of experts DeepSpeed counts "+
				"tensor parallel ranks as those that share experts, and loads only what has a "+
				"multiple of these, %d, as expert parallel ranks; choose such an ep", tp)
		}
	}
	for prefix, n := range m.numbers {
		if n%m.ranks != 0 {
			return nil, fmt.Errorf(
				"%d experts (%s%d) are not shared evenly by %d expert parallel ranks", n, prefix,
				n-1, m.ranks)
		}
	}
	return m, m.findOrder(values)
}

// findOrder finds out in which order layers are numbered, and whether neighbours have the same
// experts, and records it in m: as the values say, else as parameters follow each other.
func (m *mixture) findOrder(values []format.Value) error {
	add := func(prefix string) {
		if m.numbers[prefix] > 0 && !slices.Contains(m.layers, prefix) {
			m.layers = append(m.layers, prefix)
		}
	}
	for _, v := range values {
		list, _ := v.Data.([]any)
		for _, x := range list {
			if name, ok := x.(string); ok && v.Path == expertLayersKey {
				add(name + expertsEnd)
			}
		}
		if v.Path == "ds_config.use_data_before_expert_parallelism" {
			m.dataFirst = m.dataFirst || v.Data == true
		}
	}
	sizes := map[string]bool{}
	for _, v := range values {
		g := groupPath.FindStringSubmatch(v.Path)
		if name, ok := v.Data.(string); ok && g != nil && g[2] == "name" &&
			strings.HasPrefix(name, epName) {
			sizes[name] = true
		}
		list, _ := v.Data.([]any)
		for _, x := range list {
			if name, ok := x.(string); ok &&
				(g != nil && g[2] == namesKey || strings.HasPrefix(v.Path, stagesKey+".")) &&
				expertName.MatchString(name) {
				add(expertName.FindStringSubmatch(name)[1])
			}
		}
	}
	for name := range sizes {
		m.trained, _ = strconv.Atoi(strings.TrimPrefix(name, epName))
	}
	if len(sizes) > 1 {
		return errors.New("its layers have experts over different numbers of expert parallel " +
			"ranks, which shoal does not write; choose universal")
	}
	if len(m.layers) != len(m.numbers) {
		return fmt.Errorf(
			"nothing says in which order the layers of experts are numbered (value %s)",
			expertLayersKey)
	}
	return nil
}

// cutsExperts reports whether tensor parallel ranks have parts of experts: as the values say, else
// where a pattern names any.
func (m *mixture) cutsExperts(values []format.Value) bool {
	for _, v := range values {
		if v.Path == expertsCutKey {
			return v.Data == true
		}
	}
	r, err := parseRules(values)
	if err != nil || r == nil {
		return false
	}
	for _, l := range r.lists {
		for _, text := range l.Texts {
			if strings.Contains(text, "deepspeed_experts") {
				return true
			}
		}
	}
	return false
}

// isExpert reports whether a parameter belongs to an expert.
func (m *mixture) isExpert(param string) bool { return m != nil && expertName.MatchString(param) }

// isUnshared reports whether a parameter belongs to an expert that tensor parallel ranks do not
// share.
func (m *mixture) isUnshared(param string) bool { return m.isExpert(param) && m.single }

// localName returns the name of a parameter on its rank: experts are numbered from 0 on each.
func (m *mixture) localName(param string) string {
	if !m.isExpert(param) {
		return param
	}
	name := expertName.FindStringSubmatch(param)
	n, _ := strconv.Atoi(name[2])
	return numberedExpert(name, n%(m.numbers[name[1]]/m.ranks))
}

// ownerRank returns the expert parallel rank that has a parameter of an expert.
func (m *mixture) ownerRank(param string) int {
	name := expertName.FindStringSubmatch(param)
	n, _ := strconv.Atoi(name[2])
	return n / (m.numbers[name[1]] / m.ranks)
}

// isOnFirstRank reports whether the first of so many expert parallel ranks has a parameter; 0 is as
// 1.
func (m *mixture) isOnFirstRank(param string, ranks int) bool {
	if !m.isExpert(param) {
		return true
	}
	name := expertName.FindStringSubmatch(param)
	n, _ := strconv.Atoi(name[2])
	return n < m.numbers[name[1]]/max(ranks, 1)
}

// degrees returns the numbers of expert parallel ranks of the training run and of the output.
func (m *mixture) degrees() [2]int {
	if m == nil {
		return [2]int{1, 1}
	}
	return [2]int{m.trained, m.ranks}
}

// shareExperts returns the parameters of a group that each expert parallel rank has; nil for a
// group without experts.
func (m *mixture) shareExperts(names []string) (all [][]string, err error) {
	experts := 0
	for _, p := range names {
		if m.isExpert(p) {
			experts++
		}
	}
	if experts == 0 {
		return nil, nil
	}
	if experts < len(names) {
		return nil, fmt.Errorf("a group of the optimizer has experts and other parameters (%q, "+
			"…), and DeepSpeed has groups for experts alone", names[0])
	}
	all = make([][]string, m.ranks)
	for _, p := range names {
		e := m.ownerRank(p)
		all[e] = append(all[e], p)
	}
	for e := range all {
		same := len(all[e]) == len(all[0])
		for i := range all[e] {
			same = same && m.localName(all[e][i]) == m.localName(all[0][i])
		}
		if !same {
			return nil, fmt.Errorf("expert parallel rank %d would have other parameters in a "+
				"group than rank 0 (%q, …)", e, names[0])
		}
	}
	return all, nil
}

// sharerCount returns how many ranks share the experts of an expert parallel rank.
func (m *mixture) sharerCount(w *zeroWriter) int {
	if m.single {
		return w.ranks * w.tps / m.ranks
	}
	return w.ranks / m.ranks
}

// expertRankOf returns which expert parallel rank a data parallel one is, and its index among those
// that share the same experts.
func (m *mixture) expertRankOf(w *zeroWriter, rank int) (e, index int) {
	if m.single {
		rank = rank*w.tps + w.tp
	}
	if m.dataFirst {
		return rank / m.sharerCount(w), rank % m.sharerCount(w)
	}
	return rank % m.ranks, rank / m.ranks
}

// writesExpertsOf reports whether one of a writer's ranks writes the files of an expert parallel
// rank: the first that has its experts does.
func (m *mixture) writesExpertsOf(w *zeroWriter, e int) bool {
	for rank := range w.ranks {
		if own, index := m.expertRankOf(w, rank); own == e && index == 0 {
			return true
		}
	}
	return false
}

// writtenParams returns the parameters of a group of which a writer's ranks have something.
func (m *mixture) writtenParams(w *zeroWriter, f *flatState) (params []string) {
	if f.experts == nil {
		return f.params
	}
	for rank := range w.ranks {
		e, _ := m.expertRankOf(w, rank)
		params = append(params, f.experts[e]...)
	}
	return params
}

// checkStage fails where a stage, of which groups are the parameters, has no experts.
func (m *mixture) checkStage(groups [][]string, stage, of int) error {
	if m == nil || slices.ContainsFunc(slices.Concat(groups...), m.isExpert) {
		return nil
	}
	return fmt.Errorf("stage %d of %d would have no experts (deepspeed.moe), and DeepSpeed "+
		"itself hangs then, as only stages with some make the groups of their ranks; choose "+
		"stages that all have experts (--stages), or fewer", stage, of)
}

// writtenLayers returns the layers of which a writer has experts, in the order in which their files
// number them.
func (m *mixture) writtenLayers(w *zeroWriter) (layers []string) {
	for _, prefix := range m.layers {
		if slices.ContainsFunc(w.given, func(t format.Tensor) bool {
			_, param := parameterOf(t.Name)
			return strings.HasPrefix(param, prefix)
		}) {
			layers = append(layers, prefix)
		}
	}
	return layers
}

// expertCounts returns how many experts each layer of a writer has.
func (m *mixture) expertCounts(w *zeroWriter) *pickle.List {
	list := &pickle.List{}
	for _, prefix := range m.writtenLayers(w) {
		list.Items = append(list.Items, int64(m.numbers[prefix]))
	}
	return list
}

// renameGroup names a group of experts after the number of expert parallel ranks.
func (m *mixture) renameGroup(group *pickle.Dict) {
	v, _ := group.Get("name")
	if name, ok := v.(string); ok && strings.HasPrefix(name, epName) {
		group.Set("name", epName+strconv.Itoa(m.ranks))
	}
}

// layExpertFiles lays out the files of the experts that the writer's ranks have, and those in which
// DeepSpeed would have their optimizer without ZeRO.
func (w *zeroWriter) layExpertFiles() error {
	if w.mixture == nil {
		return nil
	}
	for layer, prefix := range w.mixture.writtenLayers(w) {
		for expert := range w.mixture.numbers[prefix] {
			first := prefix + strconv.Itoa(expert) + "."
			if !w.mixture.writesExpertsOf(w, w.mixture.ownerRank(first)) {
				continue
			}
			out, root := &file{}, &pickle.Dict{}
			for _, t := range w.models {
				name, ok := strings.CutPrefix(t.Name, w.prefix)
				if !ok || !strings.HasPrefix(name, first) {
					continue
				}
				p, err := out.addStore(tensorStore(t))
				if err != nil {
					return err
				}
				root.Add(name, p)
			}
			if err := w.layStores(expertFileName(layer, expert, w.mp), root, out); err != nil {
				return err
			}
		}
	}
	for e := range w.mixture.ranks {
		if !w.mixture.writesExpertsOf(w, e) {
			continue
		}
		root := &pickle.Dict{}
		root.Add("optimizer", nil)
		if err := w.layStores(fmt.Sprintf("expp_rank_%d_mp_rank_%02d_optim_states.pt", e, w.mp),
			root,
			&file{}); err != nil {
			return err
		}
	}
	for _, p := range slices.Concat(w.groups...) {
		if w.mixture.isExpert(p) && w.findTensor(w.prefix+p) == nil {
			return fmt.Errorf("of parameter %q there are master weights only, and the files of "+
				"experts have the model's own; choose universal", p)
		}
	}
	return nil
}
