package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/hf"
	"github.com/shoal-ml/shoal/format/megatron"
)

// Facts are what people say of a model whose tensors and arguments do not tell it. What is 0 or
// empty they do not say.
type Facts struct {
	Config     *hf.Config // nil for what Checkpoint.Config finds
	KVHeads    int        // of k and v in a layer
	Vocabulary int        // rows
}

// decoders are the types of models that have the names of layout.MegatronCore, and compute with the
// same numbers.
var decoders = []string{"llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral"}

// Config is the configuration of Hugging Face that lies beside the tensors of a checkpoint, or in
// the folder by which it was opened. Where there is none, nothing is said.
func (c *Checkpoint) Config() (hf.Config, error) {
	config, err := hf.ReadConfig(c.Files)
	if err != nil || config != (hf.Config{}) {
		return config, err
	}
	top := format.NewFiles(c.fsys)
	config, err = hf.ReadConfig(top)
	return config, errors.Join(err, top.Close())
}

// Logical gives the tensors of a model of Megatron the names of Hugging Face, and takes apart what
// Megatron joins (megatron.Logical). It fails where there are none. behind are so many tensors that
// it leaves out, which are of no model.
func (c *Checkpoint) Logical(facts Facts) (behind int, err error) {
	if facts.Config == nil {
		config, err := c.Config()
		if err != nil {
			return 0, fmt.Errorf("%s: %w", c.path, err)
		}
		facts.Config = &config
	}
	if t := facts.Config.Type; t != "" && !slices.Contains(decoders, t) {
		return 0, fmt.Errorf("%s: by its %s the model is a %s, and shoal has the names of %s",
			c.path, hf.ConfigName, t, strings.Join(decoders, ", "))
	}
	m, err := facts.model(megatron.Tell(c.Checkpoint))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", c.path, err)
	}
	whole, behind, err := megatron.Logical(c.Checkpoint, m)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", c.path, err)
	}
	for name, old := range whole {
		c.renamed[name] = cmp.Or(c.renamed[old], old)
	}
	c.apart = true
	if err := c.agrees(facts.Config); err != nil {
		return 0, fmt.Errorf("%s: %w", c.path, err)
	}
	return behind, nil
}

// model puts together what people, the configuration and the arguments say, the first that says
// something first. The latter two must be of one model.
func (f *Facts) model(args megatron.Model) (m megatron.Model, err error) {
	config := f.Config
	tell := func(given int, flag string, said int, args megatron.Fact) megatron.Fact {
		switch {
		case given > 0:
			return megatron.Fact{N: given, By: flag}
		case said > 0 && args.N > 0 && said != args.N && err == nil:
			err = fmt.Errorf("%s says %d where %s is %d: it is of another model", hf.ConfigName,
				said, args.By, args.N)
		}
		if said > 0 {
			return megatron.Fact{N: said, By: hf.ConfigName}
		}
		return args
	}
	m.Type = config.Type
	m.Heads = tell(0, "", config.Heads, args.Heads)
	m.KVHeads = tell(f.KVHeads, "--kv-heads", config.KVHeads, args.KVHeads)
	m.HeadSize = tell(0, "", config.HeadSize, args.HeadSize)
	m.Vocabulary = tell(f.Vocabulary, "--vocab-size", config.Vocabulary, megatron.Fact{})
	// which can be less than in the configuration, by which the model is loaded
	switch a := args.Vocabulary; {
	case m.Vocabulary.N == 0:
		m.Vocabulary = a
	case m.Vocabulary.N < a.N && f.Vocabulary == 0 && err == nil:
		err = fmt.Errorf("%s says %d rows of the vocabulary where %s is %d, and some would be "+
			"lost; say with --vocab-size how many are meant", hf.ConfigName, m.Vocabulary.N, a.By,
			a.N)
	}
	return m, err
}
