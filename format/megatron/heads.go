package megatron

// This file is what Megatron's arguments tell and tensors do not. It does no I/O.
import (
	"strings"

	"github.com/shoal-ml/shoal/format"
)

// A Model states properties of a model that its tensors do not tell.
type Model struct {
	Heads, KVHeads Fact   // heads of q, and of k and v, in each layer
	HeadSize       Fact   // rows of one head of k or v
	Vocabulary     Fact   // rows of the vocabulary, without padding
	Type           string // type of model, as Hugging Face calls it; "" = unknown
}

// A Fact is a number, and who states it; 0 if nobody does.
type Fact struct {
	N  int
	By string
}

// ModelOf returns what the arguments of the run that wrote a checkpoint say about the model; the
// zero value for other formats.
func ModelOf(c *format.Checkpoint) (m Model) {
	m.Heads, m.HeadSize, m.Vocabulary = numberArgument(c, "num_attention_heads"),
		numberArgument(c, "kv_channels"), numberArgument(c, "vocab_size")
	m.KVHeads = m.Heads // so many have k and v too, if they have no groups
	if grouped, _ := c.Value("args.group_query_attention"); grouped == true {
		m.KVHeads = numberArgument(c, "num_query_groups")
	}
	tokenizer, _ := c.Value("args.tokenizer_type")
	if name, _ := tokenizer.(string); strings.HasPrefix(name, "Null") { // has one more
		m.Vocabulary = Fact{}
	}
	return m
}

// numberArgument returns a number of Megatron's arguments; zero if no model can have that number.
func numberArgument(c *format.Checkpoint, name string) Fact {
	v, _ := c.Value("args." + name)
	if n, ok := v.(int64); ok && n > 0 && n <= 1<<30 {
		return Fact{int(n), "args." + name}
	}
	return Fact{}
}

// KVHeads returns how many heads k and v have in each layer of a model, from the arguments of the
// run that wrote a checkpoint. It is 0 where there are none, as in every other format.
func KVHeads(c *format.Checkpoint) int { return ModelOf(c).KVHeads.N }
