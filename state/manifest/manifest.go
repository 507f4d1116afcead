// Package manifest defines the seal of a checkpoint: a fingerprint of each tensor, which holds in
// any layout, and hashes of the blocks of each file, which locate damage. docs/formats/manifest.md
// describes the format.
package manifest

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/internal/strict"
	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/tensor"
)

const (
	// Version stands in every manifest.
	Version = "manifest/1"
	// Name is the name of a folder's manifest; the manifest of a file has a dot and this after the
	// file's own name.
	Name = "shoal-manifest.json"
	// BlockBytes is the number of bytes of a file that one hash covers; the last block of a file
	// can be shorter.
	BlockBytes = 4 << 20
	// MaxBytes bounds the manifest that Parse reads.
	MaxBytes = 1 << 30
)

// A Manifest says what a checkpoint held when it was sealed. Its exported methods read it and do no
// I/O; any goroutine may call them while nobody sets a field.
type Manifest struct {
	Seed    uint64 // seed of the key of the fingerprints
	Tensors []Tensor
	Files   []File
	// Shown is the fingerprint of all tensors under digest.ShownSeed, where somebody has computed
	// it; no file holds it.
	Shown digest.Sum
}

// A Tensor is a tensor of a checkpoint, or one rank's part of it.
type Tensor struct {
	Name  string
	Place string // coordinates of the rank that holds the part; "" = a whole tensor
	DType tensor.DType
	Shape tensor.Shape
	Sum   digest.Sum // fingerprint, under the key of Manifest.Seed
}

// A File is a file of a checkpoint, with a SHA-256 of each block.
type File struct {
	Name   string `json:"name"` // as fs.FS names it
	Size   int64  `json:"size"` // in bytes
	Blocks []Hash `json:"sha256"`
}

// ErrVersion says that a manifest is of another version of the format.
var ErrVersion = errors.New("it is of another version")

// A Hash is a SHA-256, in JSON a string of hexadecimal digits.
type Hash [sha256.Size]byte

// MarshalText returns the hexadecimal digits.
func (h Hash) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, h[:]), nil }

// UnmarshalJSON sets the hash from its digits, and refuses null too.
func (h *Hash) UnmarshalJSON(b []byte) error {
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return err
	}
	sum, err := hex.DecodeString(text)
	if err != nil || len(sum) != len(h) {
		return fmt.Errorf("%.80q is no SHA-256", text)
	}
	*h = Hash(sum)
	return nil
}

// A manifestJSON is a manifest as it is written.
type manifestJSON struct {
	Shoal   string       `json:"shoal"`
	Seed    string       `json:"seed"`
	State   string       `json:"state"`
	Tensors []tensorJSON `json:"tensors"`
	Files   []File       `json:"files"`
}

// A tensorJSON is a Tensor as it is written.
type tensorJSON struct {
	Name  string       `json:"name"`
	Place string       `json:"place,omitempty"`
	DType string       `json:"dtype"`
	Shape tensor.Shape `json:"shape"`
	Sum   string       `json:"sum"`
}

// StateSum returns the fingerprint of all tensors together, under the key of their fingerprints.
func (m *Manifest) StateSum(key *digest.Key) (sum digest.Sum) {
	for _, t := range m.Tensors {
		sum = sum.Plus(key.TensorSum(strings.TrimSpace(t.Name+" "+t.Place), t.DType, t.Shape,
			t.Sum))
	}
	return sum
}

// Append appends the manifest as JSON to b. The same manifest always gives the same bytes. It fails
// for a file that Parse would refuse.
func (m *Manifest) Append(b []byte) ([]byte, error) {
	j := manifestJSON{Shoal: Version, Seed: fmt.Sprintf("%016x", m.Seed),
		State: m.StateSum(digest.NewKey(m.Seed)).String(), Tensors: []tensorJSON{}, Files: []File{}}
	for _, t := range m.Tensors {
		j.Tensors = append(j.Tensors,
			tensorJSON{t.Name, t.Place, t.DType.String(), append(tensor.Shape{}, t.Shape...),
				t.Sum.String()})
	}
	for _, f := range m.Files {
		if err := f.Check(); err != nil {
			return b, err
		}
		f.Blocks = append([]Hash{}, f.Blocks...) // an empty list, not null
		j.Files = append(j.Files, f)
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	err := e.Encode(j)
	return append(b, text.Bytes()...), err
}

// Parse reads a manifest strictly: an unknown field, a name that occurs twice and a file outside
// the folder are errors, and so is a fingerprint of the state that is not the sum of the tensors'.
func Parse(text []byte) (*Manifest, error) {
	m, err := parseManifest(text)
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	return m, nil
}

// parseManifest is Parse, whose errors do not say that they are of a manifest.
func parseManifest(text []byte) (*Manifest, error) {
	var j manifestJSON
	err := strict.JSON(text, &j)
	if err != nil { // another version may have other fields
		var other struct {
			Shoal string `json:"shoal"`
		}
		if json.Unmarshal(text, &other) == nil {
			j.Shoal = other.Shoal
		}
	}
	switch {
	case j.Shoal != "" && j.Shoal != Version:
		return nil, fmt.Errorf("%w: %.80q, and this program reads %q", ErrVersion, j.Shoal, Version)
	case err != nil:
		return nil, err
	case j.Shoal == "":
		return nil, fmt.Errorf("the field shoal is missing; this is no manifest")
	}
	seed, err := strconv.ParseUint(j.Seed, 16, 64)
	if err != nil {
		return nil, fmt.Errorf("seed: %w", err)
	}
	m := &Manifest{Seed: seed, Files: j.Files}
	for _, t := range j.Tensors {
		x, err := t.parseTensor()
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		m.Tensors = append(m.Tensors, x)
	}
	for _, f := range m.Files {
		if err := f.Check(); err != nil {
			return nil, err
		}
	}
	if err := m.sort(); err != nil {
		return nil, err
	}
	if sum := m.StateSum(digest.NewKey(seed)).String(); sum != j.State {
		return nil, fmt.Errorf("the tensors have the fingerprint %s together, and it says %s; "+
			"it was changed by hand or damaged", sum, j.State)
	}
	return m, nil
}

// sort orders tensors and files, and fails when one occurs twice. Parse alone calls it.
func (m *Manifest) sort() error {
	tensors := func(a, b Tensor) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Place, b.Place))
	}
	files := func(a, b File) int { return strings.Compare(a.Name, b.Name) }
	slices.SortFunc(m.Tensors, tensors)
	slices.SortFunc(m.Files, files)
	for i := 1; i < len(m.Tensors); i++ {
		if tensors(m.Tensors[i-1], m.Tensors[i]) == 0 {
			return fmt.Errorf("tensor %q stands twice", m.Tensors[i].Name)
		}
	}
	for i := 1; i < len(m.Files); i++ {
		if files(m.Files[i-1], m.Files[i]) == 0 {
			return fmt.Errorf("file %q stands twice", m.Files[i].Name)
		}
	}
	return nil
}

// parseTensor reads the texts of a tensor.
func (t *tensorJSON) parseTensor() (x Tensor, err error) {
	x = Tensor{Name: t.Name, Place: t.Place, Shape: t.Shape}
	if x.DType, err = tensor.ParseDType(t.DType); err != nil {
		return x, err
	}
	if _, err := t.Shape.Elements(); err != nil {
		return x, err
	}
	x.Sum, err = digest.ParseSum(t.Sum)
	return x, err
}

// CheckName fails for what no manifest has as the name of a file: what leads out of the folder on
// any system, so that backslashes and colons are refused, and what is not UTF-8.
func CheckName(name string) error {
	if !fs.ValidPath(name) || strings.ContainsAny(name, `\:`) {
		return fmt.Errorf("file %q: its name leads out of the folder, or is none", name)
	}
	return nil
}

// Check fails for a name that CheckName refuses, and when the number of blocks does not match the
// size of the file.
func (f *File) Check() error {
	if err := CheckName(f.Name); err != nil {
		return err
	}
	if want := (f.Size + BlockBytes - 1) / BlockBytes; f.Size < 0 || int64(len(f.Blocks)) != want {
		return fmt.Errorf("file %q: %d hashes for %d bytes", f.Name, len(f.Blocks), f.Size)
	}
	return nil
}
