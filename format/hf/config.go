package hf

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/shoal-ml/shoal/format"
)

// This file reads the configuration of a model, which says what its tensors alone do not: how
// heads are counted. Only ReadConfig does I/O.

const (
	// ConfigName is the file that Hugging Face's libraries keep beside the tensors of a model.
	ConfigName = "config.json"
	// MaxConfig bounds the size of a configuration in bytes.
	MaxConfig = 4 << 20

	maxHeads  = 1 << 20
	maxRows   = 1 << 30
	maxLayers = 1 << 20
)

// A Config is what a configuration says about the shape of a model. 0 means that it says nothing.
type Config struct {
	Type       string // type of model, such as llama; "" = not said
	Heads      int    // number of heads of q in each layer
	KVHeads    int    // number of heads of k and v in each layer
	HeadSize   int    // number of rows of one head of k or v
	Vocabulary int    // number of rows of the vocabulary
	Layers     int    // number of layers
	// Tied says whether the output layer shares the weights of the embedding; nil = not said.
	Tied *bool

	// AttentionBias and MLPBias say whether there are biases, where the type does not tell.
	AttentionBias, MLPBias bool
}

// ReadConfig reads the configuration beside the tensors of a model; the zero value if there is
// none.
func ReadConfig(files *format.Files) (Config, error) {
	text, err := files.ReadAll(ConfigName, MaxConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return Config{}, nil
	}
	if err != nil {
		return Config{}, err
	}
	c, err := ParseConfig(text)
	if err != nil {
		return c, fmt.Errorf("%s: %w", ConfigName, err)
	}
	return c, nil
}

// ParseConfig reads the text of a configuration. What the text_config in it says counts more than
// what stands outside of it; but of Tied less, and there is a bias where either says so.
func ParseConfig(text []byte) (c Config, err error) {
	type numbers struct {
		KV int `json:"num_key_value_heads"`
		// The heads of k and v default to this number.
		Query      int   `json:"num_attention_heads"`
		Size       int   `json:"head_dim"`
		Vocabulary int   `json:"vocab_size"`
		Layers     int   `json:"num_hidden_layers"`
		Tied       *bool `json:"tie_word_embeddings"`
		Attention  bool  `json:"attention_bias"`
		MLP        bool  `json:"mlp_bias"`
	}
	var config struct {
		numbers
		Type string  `json:"model_type"`
		Text numbers `json:"text_config"` // of a model with several parts
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return c, fmt.Errorf("it is no %s of a model: %w", ConfigName, err)
	}
	// The numbers of text_config, if there are any, are those of the decoder.
	top, inner := config.numbers, config.Text
	for _, n := range []numbers{top, inner} {
		for _, heads := range []int{n.KV, n.Query} {
			if heads < 0 || heads > maxHeads {
				return c, fmt.Errorf("a layer with %d heads", heads)
			}
		}
		if n.Size < 0 || n.Size > maxRows || n.Vocabulary < 0 || n.Vocabulary > maxRows {
			return c, fmt.Errorf("a head of %d rows, or a vocabulary of %d", n.Size, n.Vocabulary)
		}
		if n.Layers < 0 || n.Layers > maxLayers {
			return c, fmt.Errorf("a model of %d layers", n.Layers)
		}
	}
	c = Config{Type: config.Type, Heads: cmp.Or(inner.Query, top.Query),
		KVHeads:    cmp.Or(inner.KV, top.KV, inner.Query, top.Query),
		HeadSize:   cmp.Or(inner.Size, top.Size),
		Vocabulary: cmp.Or(inner.Vocabulary, top.Vocabulary), Tied: cmp.Or(top.Tied, inner.Tied),
		Layers: cmp.Or(inner.Layers, top.Layers), AttentionBias: top.Attention ||
			inner.Attention, MLPBias: top.MLP || inner.MLP}
	return c, nil
}
