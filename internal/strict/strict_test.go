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
