package state

import (
	"cmp"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/shoal-ml/shoal/checkpoint"
	"github.com/shoal-ml/shoal/format/hf"
	"github.com/shoal-ml/shoal/format/megatron"
	"github.com/shoal-ml/shoal/internal/cli"
)

// modelFlags say what names the tensors of a model get, and what the files do not tell of it. One
// goroutine uses them, that of the command; the only file that they read is that of --config.
type modelFlags struct {
	names, config string // which names are given; a config.json of Hugging Face; "" = not given
	kvHeads       int    // heads of k and v in a layer; 0 = not given
	vocabulary    int    // rows of the vocabulary; 0 = not given
	either        bool   // whether a checkpoint may have these names already

	read   *hf.Config // the content of the file config; nil = not read
	behind int        // number of tensors that are of no model, and were left out
	named  bool       // whether names were given to tensors of a checkpoint
	// toldHeads are the heads of k and v by the arguments of a checkpoint whose values are left
	// out; 0 = none are, or nothing tells.
	toldHeads int
}

// addTo defines the flags.
func (m *modelFlags) addTo(flags *pflag.FlagSet) {
	flags.StringVar(&m.names, "names", "", "hf: give Megatron's tensors the names of Hugging "+
		"Face, and take apart what Megatron joins; after --only and --rename")
	flags.StringVar(&m.config, "config", "",
		"the model's config.json of Hugging Face; by default the one beside SRC, if there is one")
	flags.IntVar(&m.kvHeads, "kv-heads", 0, "heads of k and v in a layer, for --names hf and "+
		"the preset megatron-core; by default as config.json or Megatron's arguments say")
	flags.IntVar(&m.vocabulary, "vocab-size", 0, "rows of the vocabulary, without those that "+
		"only fill it up, for --names hf; by default as config.json or Megatron's arguments say")
}

// check fails for flags that are wrong whatever the checkpoint is. It reads the file of --config
// into m.read, if that is given and not read yet.
func (m *modelFlags) check() error {
	switch {
	case m.kvHeads < 0 || m.kvHeads > 1<<20:
		return cli.Usagef("--kv-heads %d: a layer has at least one, and at most %d", m.kvHeads,
			1<<20)
	case m.vocabulary < 0 || m.vocabulary > 1<<30:
		return cli.Usagef("--vocab-size %d: a vocabulary has at least one row, and at most %d",
			m.vocabulary, 1<<30)
	case m.names != "" && m.names != "hf":
		return cli.Usagef("--names %s: the names that shoal can give are hf", m.names)
	case m.config == "" || m.read != nil:
		return nil
	}
	_, config, err := cli.ReadFile(m.config, hf.MaxConfig, hf.ParseConfig)
	m.read = &config
	return err
}

// refuseUnused fails for flags that would change nothing. megatronCore says whether a layout is to
// be that of the preset megatron-core, for which heads count.
func (m *modelFlags) refuseUnused(flags *pflag.FlagSet, megatronCore bool) error {
	if m.names != "" {
		return nil
	}
	if flags.Changed("vocab-size") {
		return cli.Usagef("--vocab-size is for --names hf, which gives a model of Megatron the " +
			"names of Hugging Face; leave it out, or add --names hf")
	}
	for _, name := range []string{"kv-heads", "config"} {
		if flags.Changed(name) && !megatronCore {
			return cli.Usagef("--%s is for --names hf, which gives a model of Megatron the names "+
				"of Hugging Face, and for the preset megatron-core; leave it out, or add one of "+
				"these", name)
		}
	}
	return nil
}

// applyNames gives the tensors of c the names that are asked for, and sets m.behind. The flags are
// checked.
func (m *modelFlags) applyNames(c *checkpoint.Checkpoint) error {
	if m.names == "" || m.either && !megatron.HasCoreNames(c.Checkpoint) {
		return nil
	}
	var err error
	m.named = true
	m.behind, err = c.ToHuggingFace(
		checkpoint.ModelFacts{Config: m.read, KVHeads: m.kvHeads, Vocabulary: m.vocabulary})
	return err
}

// kvHeadCount returns the number of heads that k and v have in a layer: as the flag, the
// configuration or the arguments in the checkpoint say, in this order. It may read the
// configuration beside the checkpoint.
func (m *modelFlags) kvHeadCount(c *checkpoint.Checkpoint) (int, error) {
	if m.kvHeads > 0 {
		return m.kvHeads, nil
	}
	if m.read != nil && m.read.KVHeads > 0 {
		return m.read.KVHeads, nil
	}
	if m.read != nil {
		return 0, cli.Usagef("--config %s tells no number of heads (num_key_value_heads, or "+
			"num_attention_heads): give another one, or --kv-heads", m.config)
	}
	config, err := c.Config()
	if err != nil {
		return 0, fmt.Errorf("%w; say with --kv-heads how many heads of k and v a layer has", err)
	}
	n := config.KVHeads
	if n == 0 {
		n = cmp.Or(megatron.KVHeads(c.Checkpoint), m.toldHeads)
	}
	if n == 0 {
		return 0, cli.Usagef("megatron-core interleaves heads of q, k and v, and the checkpoint " +
			"has no config.json and no arguments of Megatron that tell how many there are; add " +
			"--kv-heads")
	}
	return n, nil
}
