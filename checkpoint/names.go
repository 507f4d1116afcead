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

// How the tensors of a Megatron model get their Hugging Face names. The methods of Checkpoint are
// for one goroutine at a time; they read a configuration, and no elements.

// ModelFacts are properties of a model that its tensors and arguments do not tell.
type ModelFacts struct {
	Config     *hf.Config // configuration; nil = what Checkpoint.Config finds
	KVHeads    int        // heads of k and v in a layer; 0 = not given
	Vocabulary int        // rows of the vocabulary; 0 = not given
}

// decoderTypes are the model types whose layers have the names of layout.MegatronCoreStores and
// compute with the same numbers.
var decoderTypes = []string{"llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral"}

// Config reads the Hugging Face configuration that lies beside the tensors of a checkpoint, or in
// the folder by which it was opened; the zero value if there is none.
func (c *Checkpoint) Config() (hf.Config, error) {
	config, err := hf.ReadConfig(c.Files)
	if err != nil || config != (hf.Config{}) {
		return config, err
	}
	top := format.NewFiles(c.fsys)
	config, err = hf.ReadConfig(top)
	return config, errors.Join(err, top.Close())
}

// ToHuggingFace gives the tensors of a Megatron model their Hugging Face names, and splits the
// tensors that Megatron joins (megatron.ToHuggingFace), in the list of the checkpoint and not in
// its files. It fails when the checkpoint holds no such model. dropped is the number of tensors
// that it leaves out because they belong to no model.
func (c *Checkpoint) ToHuggingFace(facts ModelFacts) (dropped int, err error) {
	if facts.Config == nil {
		config, err := c.Config()
		if err != nil {
			return 0, fmt.Errorf("%s: %w", c.path, err)
		}
		facts.Config = &config
	}
	if t := facts.Config.Type; t != "" && !slices.Contains(decoderTypes, t) {
		return 0, fmt.Errorf("%s: by its %s the model is a %s, and shoal has the names of %s",
			c.path, hf.ConfigName, t, strings.Join(decoderTypes, ", "))
	}
	m, err := facts.megatronModel(megatron.ModelOf(c.Checkpoint))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", c.path, err)
	}
	whole, dropped, err := megatron.ToHuggingFace(c.Checkpoint, m)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", c.path, err)
	}
	for name, old := range whole {
		c.renamed[name] = cmp.Or(c.renamed[old], old)
	}
	c.derived = true
	if err := c.checkConfig(facts.Config); err != nil {
		return 0, fmt.Errorf("%s: %w", c.path, err)
	}
	return dropped, nil
}

// megatronModel returns the model that the user, the configuration and the arguments describe, in
// this order of precedence. It fails when configuration and arguments describe different models.
func (f *ModelFacts) megatronModel(args megatron.Model) (m megatron.Model, err error) {
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
	// The arguments can say less than the configuration, by which the model is loaded.
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
