package hf

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/shoal-ml/shoal/format"
)

const (
	// ConfigName is the file that Hugging Face's libraries keep beside the tensors of a model.
	ConfigName = "config.json"
	// MaxConfig bounds its bytes.
	MaxConfig = 4 << 20

	maxHeads  = 1 << 20
	maxRows   = 1 << 30
	maxLayers = 1 << 20
)

// A Config is what such a file says of the shape of a model, 0 where it says nothing.
type Config struct {
	Type       string // of model, such as llama
	Heads      int    // of q in each layer
	KVHeads    int    // of k and v
	HeadSize   int    // rows of one of k or v
	Vocabulary int    // rows
	Layers     int
	Tied       *bool // whether the output layer has the weights of the embedding

	AttentionBias, MLPBias bool // whether there are biases, where the type does not tell
}

// ReadConfig reads the file beside the tensors of a model; where there is none, nothing is said.
func ReadConfig(files *format.Files) (Config, error) {
	text, err := files.All(ConfigName, MaxConfig)
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

// ParseConfig reads the text of one.
func ParseConfig(text []byte) (c Config, err error) {
	type numbers struct {
		KV int `json:"num_key_value_heads"`
		// so many have k and v too where nothing else is said
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
		Text numbers `json:"text_config"` // of a model with other parts too
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return c, err
	}
	// of these the latter, where it is there, are those of the decoder
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
