package strict_test

import (
	"encoding/json"
	"fmt"
	"reflect"
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

// embedded has a field that promotes, for TestKeys.
type embedded struct {
	Deep int `json:"deep"`
}

// TestKeys: a key that stands twice in an object, or that has another case than the field, is
// refused wherever it stands. Objects that are read into no struct may have any keys, once.
func TestKeys(t *testing.T) {
	for text, want := range map[string]string{
		`{"a":1,"a":2}`:                                      `field "a" stands in it twice`,
		`{"a":1,"\u0061":2}`:                                 `field "a" stands in it twice`,
		`{"A":1}`:                                            `unknown field "A"; write "a"`,
		`{"a":1,"A":1}`:                                      `unknown field "A"; write "a"`,
		`{"deep":1,"DEEP":2}`:                                `unknown field "DEEP"; write "deep"`,
		`{"Plain":1,"plain":1}`:                              `unknown field "plain"; write "Plain"`,
		`{"list":[{"a":1}, {"A":1}]}`:                        `unknown field "A"; write "a"`,
		`{"by_name":{"x":{"a":1},"x":{}}}`:                   `field "x" stands in it twice`,
		`{"by_name":{"x":{"A":1}}}`:                          `unknown field "A"; write "a"`,
		`{"any":{"x":[{"y":1,"y":2}]}}`:                      `field "y" stands in it twice`,
		`{"raw":{"x":1,"x":2}}`:                              `field "x" stands in it twice`,
		`{"any":{"A":1,"a":2}}`:                              "",
		`{"by_name":{"x":{"a":1},"X":{"a":1}}}`:              "",
		`{"list":[ ] , "a" : -1.5e3 , "deep": 2 }`:           "",
		`{"text":"{\"a\":1,\"a\":\\","any":[true,null,"]"]}`: "",
		`{"inner":{"a":1,"inner":{"a":2}}}`:                  "",
		`{"inner":{"a":1,"inner":{"A":2}}}`:                  `unknown field "A"; write "a"`,
	} {
		type inner struct {
			A     float64 `json:"a"`
			Inner *inner  `json:"inner"`
		}
		var v struct {
			embedded
			inner
			Plain  int
			List   []inner          `json:"list"`
			ByName map[string]inner `json:"by_name"`
			Any    any              `json:"any"`
			Raw    json.RawMessage  `json:"raw"`
			Text   string           `json:"text"`
		}
		err := strict.JSON([]byte(text), &v)
		if err == nil && want != "" || err != nil && err.Error() != want {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestYAML checks which texts are read, and what is said of the others.
func TestYAML(t *testing.T) {
	for text, want := range map[string]string{
		"a: 1\nlist: [{a: 2}]":        "",
		"":                            "",
		"# nothing":                   "",
		"---\na: 1\n---\n":            "",
		"base: &x {a: 1}\nlist: [*x]": `unknown field "base"`,
		"b: 1":                        `unknown field "b"`,
		"a: 1\na: 2":                  `line 2: key "a" already set in map`,
		"A: 1":                        `unknown field "A"; write "a"`,
		"A: 1\na: 2":                  `unknown field "A"; write "a"`,
		"list: [{a: 1}, {A: 2}]":      `unknown field "A"; write "a"`,
		"a: x":                        "field a has a string, and takes a number",
		"a: 1\n---\na: 2": "there is more than one document; take out what comes after the line " +
			"---",
	} {
		var v struct {
			A    float64 `json:"a"`
			List []struct {
				A float64 `json:"a"`
			} `json:"list"`
		}
		if err := strict.YAML([]byte(text), &v); err == nil && want != "" ||
			err != nil && err.Error() != want {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestWrongType: a value of another type is named as the text has it, without types of Go.
func TestWrongType(t *testing.T) {
	for text, want := range map[string]string{
		`{"layers":[{"times":{"a":"1 s"}}]}`: "field layers.times has a string (at byte 30), and " +
			"takes a number",
		`{"layers":[{"bytes":-1}]}`: "field layers.bytes has the number -1 (at byte 22), and takes " +
			"a whole number from 0 on, of up to 32 bits",
		`{"layers":{}}`: "field layers has an object (at byte 11), and takes a list",
		`{"name":1.5}`:  "field name has a number (at byte 11), and takes a text",
		`{"count":1.5}`: "field count has the number 1.5 (at byte 12), and takes a whole number of " +
			"up to 64 bits",
		`{"last":1}`: "field last has a number (at byte 9), and takes true or false",
	} {
		var v struct {
			Name   string `json:"name"`
			Count  *int64 `json:"count"`
			Last   bool   `json:"last"`
			Layers []struct {
				Times map[string]float64 `json:"times"`
				Bytes uint32             `json:"bytes"`
			} `json:"layers"`
		}
		if err := strict.JSON([]byte(text), &v); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %q", text, err, want)
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
		`[]`:                               "it has an array (at byte 1), and takes an object",
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

// FuzzJSON: what is read strictly, package json reads to the same value.
func FuzzJSON(f *testing.F) {
	type part struct {
		A    float64         `json:"a"`
		List []part          `json:"list,omitempty"`
		By   map[string]part `json:"by,omitempty"`
		Any  any             `json:"any,omitempty"`
		Raw  json.RawMessage `json:"raw,omitempty"`
	}
	for _, seed := range []string{
		`{"a":1,"list":[{"a":2},{}],"by":{"x":{"a":3}},"any":["]",null,"\\"]}`, `{"raw":{"y":"\u0061"}}`,
		`{"A":1}`, `{"a":1,"\u0061":2}`, `[]`, ` null `, `"`, `{"any":1.5e3 , "by" : { } }`, "",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var strictly, loosely part
		if strict.JSON(text, &strictly) != nil {
			return
		}
		if err := json.Unmarshal(text, &loosely); err != nil {
			t.Fatalf("%q was read, and is no JSON: %v", text, err)
		}
		if !reflect.DeepEqual(strictly, loosely) {
			t.Fatalf("%q was read as %+v, and is %+v", text, strictly, loosely)
		}
	})
}
