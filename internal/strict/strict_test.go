package strict_test

import (
	"fmt"
	"strings"
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

// TestDocument: what a file is instead of the one that is wanted is said before its fields.
func TestDocument(t *testing.T) {
	for text, wants := range map[string]string{
		`{"shoal":"model/1","a":1}`:        "",
		`{"shoal":"model/1","b":1}`:        `unknown field "b"`,
		`{"shoal":"cluster/1","kinds":[]}`: `the field shoal is "cluster/1", not "model/1"`,
		`{"kinds":[]}`:                     `the field shoal is "", not "model/1"`,
		`{"shoal":"model/1","a":`:          "it is cut off: unexpected EOF",
		``:                                 "it is empty: EOF",
		`[]`:                               "cannot unmarshal array",
	} {
		var v struct {
			Shoal string `json:"shoal"`
			A     int    `json:"a"`
		}
		err := strict.Document([]byte(text), "model/1", &v)
		if got := fmt.Sprint(err); (err == nil) != (wants == "") || !strings.Contains(got, wants) &&
			err != nil {
			t.Errorf("%q: %v, want %q", text, err, wants)
		}
	}
}
