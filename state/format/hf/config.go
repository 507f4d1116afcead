package hf

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/shoal-ml/shoal/state/format"
)

const (
	configName = "config.json"
	maxConfig  = 4 << 20
	maxHeads   = 1 << 20
)

// KVHeads returns how many heads k and v have in each layer of a model, from the configuration that Hugging Face's libraries keep beside
// its tensors. It is 0 where there is none, or where that does not say.
func KVHeads(files *format.Files) (int, error) {
	text, err := files.All(configName, maxConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	type heads struct {
		KV    int `json:"num_key_value_heads"`
		Query int `json:"num_attention_heads"` // so many have k and v too where nothing else is said
	}
	var config struct {
		heads
		Text heads `json:"text_config"` // of a model with other parts too
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return 0, fmt.Errorf("%s: %w", configName, err)
	}
	for _, n := range []int{config.KV, config.Text.KV, config.Query, config.Text.Query} {
		if n < 0 || n > maxHeads {
			return 0, fmt.Errorf("%s: a layer with %d heads", configName, n)
		}
		if n > 0 {
			return n, nil
		}
	}
	return 0, nil
}
