package megatron

// This file names the tensors of the ranks' models, of which Read has opened the files: no I/O.
import (
	"fmt"
	"slices"
	"strconv"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/internal/pattern"
)

var (
	layer    = pattern.New(`^(|.*\.)layers\.(\d+)\.`)
	numbered = pattern.New(`^(|.*\.)experts\.local_experts\.(\d+)\.`)
	// cutExperts are the tensors of which each expert parallel rank has its own.
	cutExperts = pattern.New(`(^|\.)experts\.`)
)

// A chunk is a model of a rank, several with a virtual pipeline. Its methods only read it.
type chunk struct {
	*part
	index   int             // from 0
	tensors []format.Tensor // names are those of the file
}

// addModels adds the model's tensors of all ranks to a checkpoint, and sets params of the parts.
func addModels(c *format.Checkpoint, parts []*part, size degrees) error {
	var chunks []*chunk
	for _, p := range parts {
		for i, m := range p.chunks {
			found := format.Checkpoint{}
			if err := p.file.Flatten(&found, "", m); err != nil {
				return err
			}
			chunks = append(chunks, &chunk{p, i, found.Tensors})
			if p.tp+p.pp+p.ep+i == 0 {
				for _, v := range found.Values {
					c.Values = append(c.Values, format.Value{Path: "model." + v.Path, Data: v.Data})
				}
			}
		}
	}
	first, err := firstLayers(chunks, size)
	if err != nil {
		return err
	}
	args, _ := parts[0].root.Get("args")
	untied, err := pickle.Get[bool](args, "untie_embeddings_and_output_weights")
	tied := err == nil && !untied && size.pp > 1
	stages := map[string]map[int]bool{} // of each name: the pipeline stages that have it
	for _, k := range chunks {
		for _, p := range k.modelParams(first) {
			// the embedding, which the last stage has once more
			if tied && p.Name == "model."+outputLayer {
				p.Name = "model." + wordEmbeddings
			}
			if stages[p.Name] == nil {
				stages[p.Name] = map[int]bool{}
			}
			stages[p.Name][k.pp] = true
			k.params = append(k.params, p)
		}
	}
	for _, part := range parts {
		for _, p := range part.params {
			// Stages share only what is replicated, such as tied embeddings: then the stage is part
			// of the place.
			p.Coords = part.coords(size, len(stages[p.Name]) > 1, p.experts)
			if !p.copied {
				c.Tensors = append(c.Tensors, p.Tensor)
			}
		}
	}
	return nil
}

// A param is a tensor of a rank's model under its name in the whole model.
type param struct {
	format.Tensor
	chunk   int  // index of the rank's model
	experts bool // whether each expert parallel rank has its own tensor of this name
	expert  bool // whether the tensor belongs to an expert
	copied  bool // whether another expert parallel rank has the same tensor
}

// modelParams returns the tensors of a chunk under their names in the whole model. first is the
// number of the first layer of each stack.
func (k *chunk) modelParams(first map[stack]int) (list []*param) {
	count := k.expertCounts()
	for _, t := range k.tensors {
		expert := cutExperts.MatchString(t.Name)
		experts := expert
		if m := numbered.FindStringSubmatch(t.Name); m != nil {
			n, _ := strconv.Atoi(m[2])
			t.Name = fmt.Sprintf("%sexperts.local_experts.%d.%s", m[1], n+k.ep*count[m[1]],
				t.Name[len(m[0]):])
			experts = false
		} else if m := groupedExperts.FindStringSubmatch(t.Name); m != nil {
			n, _ := strconv.Atoi(m[3])
			t.Name = fmt.Sprintf("%sexperts.%s%d", m[1], m[2], n+k.ep*count[m[1]])
			experts = false
		}
		if m := layer.FindStringSubmatch(t.Name); m != nil {
			n, _ := strconv.Atoi(m[2])
			t.Name = fmt.Sprintf("%slayers.%d.%s", m[1], n+first[stack{m[1], k.pp, k.index}],
				t.Name[len(m[0]):])
		}
		t.Name = "model." + t.Name
		list = append(list,
			&param{Tensor: t, chunk: k.index, experts: experts, expert: expert, copied: k.ep > 0 &&
				!expert})
	}
	return list
}

// A stack is the layers with a common prefix before "layers." in their names, in one chunk.
type stack struct {
	prefix    string
	pp, index int // stage, and chunk in it
}

// firstLayers returns the number of the first layer of each stack in the whole model. It counts
// over the stages in the order of the model: all stages of the first chunks, then of the second.
func firstLayers(chunks []*chunk, size degrees) (map[stack]int, error) {
	count := map[stack]int{}
	most := 0
	for _, k := range chunks {
		most = max(most, k.index)
		own := map[string]int{}
		for _, t := range k.tensors {
			if m := layer.FindStringSubmatch(t.Name); m != nil {
				n, err := strconv.Atoi(m[2])
				if err != nil || n > 1<<20 {
					return nil, fmt.Errorf("%s: %q: a layer of such a number", k.file.Name, t.Name)
				}
				own[m[1]] = max(own[m[1]], n+1)
			}
		}
		for prefix, n := range own {
			s := stack{prefix, k.pp, k.index}
			if before, ok := count[s]; ok && before != n {
				return nil, fmt.Errorf("%s has %d layers %s, another rank of its stage %d",
					k.file.Name, n, prefix, before)
			}
			count[s] = n
		}
	}
	var prefixes []string
	for s := range count {
		prefixes = append(prefixes, s.prefix)
	}
	slices.Sort(prefixes)
	first := map[stack]int{}
	for _, prefix := range slices.Compact(prefixes) {
		next := 0
		for index := range most + 1 {
			for pp := range size.pp {
				s := stack{prefix, pp, index}
				first[s] = next
				next += count[s]
			}
		}
	}
	return first, nil
}

// expertOf returns prefix and number of a tensor's expert, -1 if absurd; is = it belongs to one.
func expertOf(name string) (prefix string, n int, is bool) {
	for _, numbers := range []*pattern.Pattern{numbered, groupedExperts} {
		if m := numbers.FindStringSubmatch(name); m != nil {
			if n, err := strconv.Atoi(m[len(m)-1]); err == nil && n <= 1<<20 {
				return m[1], n, true
			}
			return m[1], -1, true
		}
	}
	return "", 0, false
}

// expertCounts returns how many experts each layer of a chunk has, by the prefix of their names.
func (k *chunk) expertCounts() map[string]int {
	count := map[string]int{}
	for _, t := range k.tensors {
		if prefix, n, is := expertOf(t.Name); is {
			count[prefix] = max(count[prefix], n+1)
		}
	}
	return count
}
