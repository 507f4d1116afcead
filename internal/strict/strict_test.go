package strict_test

import (
	"testing"

	"github.com/shoal-ml/shoal/internal/strict"
)

// TestJSON checks which texts are read.
func TestJSON(t *testing.T) {
	for text, good := range map[string]bool{
		`{"a":1}`:        true,
		" {\"a\":1} \n":  true,
		`{}`:             true,
		``:               false,
		`{"a":1,"b":2}`:  false,
		`{"a":1}{"a":1}`: false,
		`{"a":1}}`:       false,
		`{"a":1}x`:       false,
		`{"a":"x"}`:      false,
	} {
		var v struct {
			A int `json:"a"`
		}
		if err := strict.JSON([]byte(text), &v); (err == nil) != good {
			t.Errorf("%q: %v", text, err)
		}
	}
}
