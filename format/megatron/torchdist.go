package megatron

// This file reads torch_dist, after package dcp; only ReadDist and isTorchDist read files.
import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/dcp"
	"github.com/shoal-ml/shoal/internal/pattern"
)

const (
	// ConfigName is the file by which Megatron-Core knows a checkpoint of its format torch_dist.
	ConfigName = "metadata.json"

	distFormat  = "Megatron torch_dist"
	distBackend = "torch_dist"

	// ourKey is under which common.pt has what Megatron has no place for.
	ourKey = "shoal"
	// extraState ends the name of what a module keeps beside its parameters.
	extraState = "._extra_state"
	// mainKind and aloneKind are what the optimizers call a parameter's copy in f32: those that are
	// not distributed, and the distributed one in its format fully_reshardable.
	mainKind, aloneKind = "fp32_param", "param"
)

var (
	// stateKey is that of a parameter's state: its kind, and the key of the parameter.
	stateKey = pattern.New(`^(?:chained_\d+\.)?optimizer\.state\.([^.]+)\.(.+)$`)
	// stacked is a key of all layers, which a leading dimension numbers; stackedExperts of experts.
	stacked        = pattern.New(`^(|.*\.)layers\.(\D.*)$`)
	stackedExperts = pattern.New(`^(.*\.)experts\.experts\.(.+)$`)
	// shardKey is that of an object: key/shard_0.1_2.4.0.name is object 0, 1 of 2 times 4 of a key,
	// and in it the path 0.name, whose first numbers are in group 3, after how many there are.
	shardKey = pattern.New(`^(.+?)/shard_(\d+(?:\.\d+)*)_(\d+(?:\.\d+)*)(.*)$`)
)

// ReadDist reads a checkpoint of torch's distributed format, and blocks on files. Of
// Megatron-Core's (torch_dist) layers and experts come apart, under the names of Megatron's other
// format.
func ReadDist(files *format.Files) (*format.Checkpoint, error) {
	c, err := dcp.Read(files, globals)
	if err != nil {
		return nil, err
	}
	theirs := isTorchDist(files)
	if theirs {
		c.Format, c.Tensors = distFormat, splitTensors(c.Tensors)
	}
	if err := readCommon(files, c); err != nil {
		return nil, err
	}
	if theirs {
		c.Values = splitValues(c)
		if err := c.Finish(); err != nil { // so that values are found
			return nil, err
		}
		if err := splitBuckets(files, c); err != nil {
			return nil, err
		}
	}
	return c, c.Finish()
}

// isTorchDist reports whether Megatron-Core has written a folder, by its file ConfigName.
func isTorchDist(files *format.Files) bool {
	text, err := files.ReadAll(ConfigName, 1<<16)
	var config struct {
		Backend string `json:"sharded_backend"`
	}
	return err == nil && json.Unmarshal(text, &config) == nil && config.Backend == distBackend
}

// splitTensors returns tensors under the names of Megatron's other format, and splits those that
// hold all layers or experts. A tensor with two names in the metadata counts once.
func splitTensors(tensors []format.Tensor) (all []format.Tensor) {
	type place struct {
		file   string
		offset int64
	}
	there := map[place]bool{}
	alone := func(t *format.Tensor) bool {
		m := stateKey.FindStringSubmatch(t.Name)
		return m != nil && m[1] == aloneKind
	}
	for i := range tensors {
		for _, p := range tensors[i].Pieces {
			if !alone(&tensors[i]) {
				there[place{p.File, p.Offset}] = true
			}
		}
	}
	for i := range tensors {
		t := &tensors[i]
		if alone(t) && len(t.Pieces) > 0 &&
			!slices.ContainsFunc(t.Pieces, func(p format.Piece) bool {
				return !there[place{p.File, p.Offset}]
			}) {
			continue
		}
		all = append(all, splitTensor(*t)...)
	}
	return all
}

// splitTensor splits one tensor into those of which it is made. A tensor with an unknown name, or
// without some layer, stays as it is.
func splitTensor(t format.Tensor) []format.Tensor {
	if o, ok := parseObject(t.Name); ok {
		if name, ok := o.extraName(); ok && o.rest == "0" {
			t.Name = name
		}
		return []format.Tensor{t}
	}
	prefix, key := "model.", t.Name
	if m := stateKey.FindStringSubmatch(key); m != nil {
		if prefix, key = optimizerKey+"."+m[1]+".", m[2]; m[1] == mainKind || m[1] == aloneKind {
			prefix = optimizerKey + ".fp32."
		}
	} else if strings.HasPrefix(key, optimizerKey+".") || bufferKeys.MatchString(key) {
		return []format.Tensor{t}
	}
	n := leadingDims(key)
	if n > len(t.Shape) || len(t.Pieces) == 0 {
		return []format.Tensor{t}
	}
	found, all := map[string]int{}, []format.Tensor{}
	for _, p := range t.Pieces {
		var at []int
		for _, x := range p.Box[:n] {
			if x.Len() != 1 {
				return []format.Tensor{t}
			}
			at = append(at, x.From)
		}
		name := prefix + numberedKey(key, at)
		i, ok := found[name]
		if !ok {
			i = len(all)
			found[name] = i
			all = append(all, format.Tensor{Name: name, DType: t.DType, Shape: t.Shape[n:]})
		}
		if p.Box = p.Box[n:]; p.Strides != nil {
			p.Strides = p.Strides[n:]
		}
		all[i].Pieces = append(all[i].Pieces, p)
	}
	due := 1
	for _, size := range t.Shape[:n] {
		due *= min(size, len(t.Pieces)+1)
	}
	// of a parameter that is not trained, there is no state
	if len(all) != due && prefix == "model." {
		return []format.Tensor{t}
	}
	return all
}

// leadingDims returns the number of leading dimensions of the tensor of a key: layers, experts.
func leadingDims(key string) (n int) {
	if stacked.MatchString(key) {
		n++
	}
	if stackedExperts.MatchString(key) {
		n++
	}
	return n
}

// numberedKey inserts the numbers of layer and expert into a key for all, as in mp_rank folders.
func numberedKey(key string, at []int) string {
	if m := stacked.FindStringSubmatch(key); m != nil {
		key, at = fmt.Sprintf("%slayers.%d.%s", m[1], at[0], m[2]), at[1:]
	}
	if m := stackedExperts.FindStringSubmatch(key); m != nil {
		key = fmt.Sprintf("%sexperts.local_experts.%d.%s", m[1], at[0], m[2])
	}
	return key
}

// An object is an item that Megatron saves besides tensors, or something in it.
type object struct {
	key string // what was saved
	at  []int  // which of several objects
	// path in the object, which begins with the index in the list that was saved.
	rest string
}

// parseObject splits the path of an item besides tensors, by shardKey; false for other paths.
func parseObject(path string) (object, bool) {
	m := shardKey.FindStringSubmatch(path)
	if m == nil {
		return object{}, false
	}
	o := object{key: m[1]}
	of := strings.Split(m[3], ".")
	for _, text := range strings.Split(m[2], ".") {
		n, err := strconv.Atoi(text)
		if err != nil {
			return o, false
		}
		o.at = append(o.at, n)
	}
	if len(of) < len(o.at) {
		return o, false
	}
	o.rest = strings.Join(of[len(o.at):], ".") + m[4]
	return o, true
}

// extraName returns the name of a module's extra state in Megatron's other format; false for
// others.
func (o object) extraName() (string, bool) {
	n := leadingDims(o.key)
	if !strings.HasSuffix(o.key, extraState) || n != len(o.at) && (n > 0 || len(o.at) > 1) {
		return "", false
	}
	return "model." + numberedKey(o.key, o.at[:n]), true
}

// splitValues returns the values of a checkpoint under the paths of Megatron's other format,
// without those of modules that keep nothing.
func splitValues(c *format.Checkpoint) (all []format.Value) {
	steps := slices.ContainsFunc(c.Tensors, func(t format.Tensor) bool {
		return strings.HasPrefix(t.Name, optimizerKey+".step.")
	})
	for _, v := range c.Values {
		o, isObject := parseObject(v.Path)
		name, isExtra := o.extraName()
		switch list, isList := v.Data.([]any); {
		case isObject && isExtra && o.rest == "" && isList && len(list) == 1:
			if v = (format.Value{Path: name, Data: list[0]}); v.Data == nil {
				continue
			}
		case isObject && isExtra && strings.HasPrefix(o.rest, "0."):
			v.Path = name + o.rest[1:]
		case isObject && o.key == commonKey && strings.HasPrefix(o.rest, "0."):
			v.Path = o.rest[2:]
		}
		v.Path = strings.TrimPrefix(v.Path, ourKey+".")
		if strings.HasPrefix(v.Path, optimizerKey+".") && strings.HasSuffix(v.Path, commonStep) &&
			steps {
			continue // each parameter has it
		}
		all = append(all, v)
	}
	return all
}
