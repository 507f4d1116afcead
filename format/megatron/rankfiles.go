package megatron

// This file says what each rank's file is to hold, for a writer (layout.go): its goroutine, no I/O.
import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/internal/pattern"
	"github.com/shoal-ml/shoal/state/layout"
)

const (
	wordEmbeddings = "embedding.word_embeddings.weight"
	outputLayer    = "output_layer.weight"
)

// knownTensor matches tensors of Megatron Core's models, and with a kind those of optimizers.
var knownTensor = pattern.New(
	`^(?:optimizer\.([^.]+)\.)?(?:model\.)?((?:embedding|decoder|output_layer)\..+)$`)

// plainExpert matches an expert of a Hugging Face model as the preset megatron-core names it.
var plainExpert = pattern.New(`^(.*\.)experts\.(\d+)\.`)

// A rankFiles is a rank and what its file is to hold. One goroutine fills it in; it does no I/O.
type rankFiles struct {
	tp, pp, ep int                 // the rank, by axis
	model      []*local            // tensors of its model
	has        map[string]bool     // names of the parameters of its model
	states     map[string][]*local // optimizer state of each parameter
	others     []*local            // other optimizer state
	experts    []int               // numbers of its experts in the whole model
	stored     []*local            // tensors in its file so far
}

// A local is a tensor in the memory of a rank. Of its Tensor, name, type and shape count.
type local struct {
	format.Tensor
	slot, member int // slot and member in the layout
	// kind of state, "" = the model's own, and the parameter by its name in the whole model
	kind, param string
	chunk       int    // chunk of a model's tensor, with a virtual pipeline
	name        string // name of a model's tensor in the file
}

// newRankFiles returns a rank of a mesh, with nothing in its file yet.
func newRankFiles(mesh layout.Mesh, rank int) *rankFiles {
	s := &rankFiles{has: map[string]bool{}, states: map[string][]*local{}}
	for _, a := range slices.Backward(mesh) {
		switch at := rank % a.Size; a.Name {
		case "tp":
			s.tp = at
		case "pp":
			s.pp = at
		case "ep":
			s.ep = at
		}
		rank /= a.Size
	}
	return s
}

// assignTensors adds to each rank what the layout puts there, and finds out if embeddings are tied.
func (w *writer) assignTensors() error {
	w.tied = true
	for i := range w.layout.Slots {
		s := &w.layout.Slots[i]
		for member, name := range s.Names {
			l := local{Tensor: format.Tensor{Name: name, DType: s.DType, Shape: s.Shape}, slot: i,
				member: member}
			if m := knownTensor.FindStringSubmatch(name); m != nil {
				l.kind, l.param = m[1],
					plainExpert.ReplaceAllString(m[2], "${1}experts.local_experts.$2.")
			} else if bufferKeys.MatchString(name) {
				return flatBufferError(fmt.Sprintf("tensor %q", name))
			} else if !strings.HasPrefix(name, optimizerKey+".") {
				return fmt.Errorf("tensor %q is none of a model of Megatron Core; leave it out "+
					"with --only, such as --only 'model.**', or give it another name with --rename",
					name)
			}
			if strings.HasPrefix(l.param, "decoder.layers.") && !layer.MatchString(l.param) {
				return fmt.Errorf("tensor %q has no number of a layer: it has all layers, and "+
					"here each must be by itself", name)
			}
			if l.param == outputLayer {
				w.tied = false
			}
			for _, rank := range w.layout.Sets[s.Set] {
				one := l
				w.ranks[rank].addTensor(&one)
			}
		}
	}
	for _, s := range w.ranks {
		for _, list := range s.states {
			slices.SortFunc(list, func(a, b *local) int { return strings.Compare(a.kind, b.kind) })
		}
		slices.SortFunc(s.others, func(a, b *local) int { return strings.Compare(a.Name, b.Name) })
	}
	return nil
}

// addTensor adds a tensor to what lies on the rank.
func (s *rankFiles) addTensor(l *local) {
	switch {
	case l.param == "":
		s.others = append(s.others, l)
	case l.kind != "":
		s.states[l.param] = append(s.states[l.param], l)
	default:
		s.model = append(s.model, l)
	}
}

// numberLayers counts the layers of the stages and the experts of the ranks, and keeps of the
// ranks' models what Megatron looks for, under its names.
func (w *writer) numberLayers() error {
	stages := make([]map[int]bool, w.size.pp)
	for i := range stages {
		stages[i] = map[int]bool{}
	}
	for _, s := range w.ranks {
		experts := map[int]bool{}
		for _, l := range s.model {
			if m := layer.FindStringSubmatch(l.param); m != nil {
				n, err := strconv.Atoi(m[2])
				if err != nil || n > 1<<20 {
					return fmt.Errorf("tensor %q has the number %s", l.Name, m[2])
				}
				stages[s.pp][n] = true
			}
			if _, n, is := expertOf(l.param); is && n < 0 {
				return fmt.Errorf("tensor %q is of an expert of such a number", l.Name)
			} else if is {
				experts[n] = true
			}
		}
		s.experts = slices.Sorted(maps.Keys(experts))
		if n := len(s.experts); n > 0 && (s.experts[0] != s.ep*n || s.experts[n-1] != s.ep*n+n-1) {
			return fmt.Errorf(
				"expert parallel rank %d has the experts %v; Megatron wants equal parts in a row",
				s.ep, s.experts)
		}
	}
	if err := w.findChunks(stages); err != nil {
		return err
	}
	for _, s := range w.ranks {
		s.model = slices.DeleteFunc(s.model, func(l *local) bool {
			l.chunk, l.name = w.nameOnRank(s, l.param)
			s.has[l.param] = s.has[l.param] || l.name != ""
			return l.name == ""
		})
	}
	return w.checkEmbedding()
}

// checkEmbedding fails when the embedding is not where Megatron looks for it: on the first stage,
// and as the output layer on the last.
func (w *writer) checkEmbedding() error {
	there := slices.ContainsFunc(w.ranks, func(s *rankFiles) bool { return s.has[wordEmbeddings] })
	for _, s := range w.ranks {
		if due := s.pp == 0 || w.tied && s.pp == w.size.pp-1; there && due &&
			!s.has[wordEmbeddings] {
			return fmt.Errorf("the layout puts the embedding on other stages than the first and " +
				"the last, and without an output layer Megatron looks for it there: pp=at(0,-1)")
		}
	}
	return nil
}

// nameOnRank returns a parameter's chunk and name in a rank's file; "" if Megatron wants it
// elsewhere.
func (w *writer) nameOnRank(s *rankFiles, param string) (chunk int, name string) {
	last := s.pp == w.size.pp-1
	if m := layer.FindStringSubmatch(param); m != nil {
		n, _ := strconv.Atoi(m[2])
		chunk, n = w.stages[s.pp].findLayer(n)
		if n < 0 {
			return 0, ""
		}
		param = fmt.Sprintf("%slayers.%d.%s", m[1], n, param[len(m[0]):])
		if m := numbered.FindStringSubmatch(param); m != nil {
			n, _ := strconv.Atoi(m[2])
			param = fmt.Sprintf("%sexperts.local_experts.%d.%s", m[1], n-s.ep*len(s.experts),
				param[len(m[0]):])
		} else if m := groupedExperts.FindStringSubmatch(param); m != nil {
			n, _ := strconv.Atoi(m[3])
			param = fmt.Sprintf("%sexperts.%s%d", m[1], m[2], n-s.ep*len(s.experts))
		}
		return chunk, param
	}
	switch embedding := strings.HasPrefix(param, "embedding."); {
	case embedding && s.pp == 0:
		return 0, param
	case !embedding && last:
		return w.chunks - 1, param
	case last && w.tied && param == wordEmbeddings:
		return w.chunks - 1, outputLayer
	}
	return 0, ""
}

// folderName returns the name of the rank's folder, over axes of these sizes.
func (s *rankFiles) folderName(d degrees) string {
	name := fmt.Sprintf("mp_rank_%02d", s.tp)
	if d.pp > 1 {
		name += fmt.Sprintf("_%03d", s.pp)
	}
	if d.ep > 1 {
		name += fmt.Sprintf("_%03d", s.ep)
	}
	return name
}

// addStored puts a tensor into the file of the rank, and returns what stands for it in the pickle.
func (s *rankFiles) addStored(l *local) (any, error) {
	s.stored = append(s.stored, l)
	return torchzip.Placeholder(len(s.stored)-1, l.Tensor)
}
