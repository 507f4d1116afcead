package checkpoint

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/pickle"
)

// What a job's checkpoint has beside tensors: learning rates, betas, and what programs have
// registered, as docs/formats/job-checkpoints.md writes it. One goroutine at a time uses a
// checkpoint; only addJobValues reads a file and changes the checkpoint, and the functions without
// a receiver are pure.

// IsJob reports whether the checkpoint is one of a running job.
func (c *Checkpoint) IsJob() bool { return c.job != nil }

// JobWorkers returns how many workers wrote a job's checkpoint, each of which has values of its
// own, such as random states; 0 if it is none.
func (c *Checkpoint) JobWorkers() int {
	if c.job == nil {
		return 0
	}
	return c.job.Workers
}

// addJobValues reads the description of a job's checkpoint, if there is one, and adds its values to
// those that the files have. Faults says what is wrong with the description. Open calls it, before
// others have the checkpoint.
func (c *Checkpoint) addJobValues() {
	if c.file != "" {
		return
	}
	text, err := c.Files.ReadAll(snapshot.StateName, snapshot.MaxTextBytes)
	if err != nil {
		return
	}
	if c.job, err = snapshot.ParseState(text); err != nil {
		return
	}
	values, err := jobValues(c.job)
	if err != nil {
		c.notesFault = fmt.Errorf("its notes: %w", err)
		return
	}
	taken := map[string]bool{}
	for _, v := range c.Values {
		taken[v.Path] = true
	}
	for _, v := range values {
		path := v.Path
		for i := 2; taken[v.Path]; i++ { // as names of tensors that are taken
			v.Path = fmt.Sprint(path, " ", i)
		}
		taken[v.Path] = true
		c.Values = append(c.Values, v)
	}
	slices.SortStableFunc(c.Values, func(a, b format.Value) int {
		return strings.Compare(a.Path, b.Path)
	})
}

// jobValues lists what the description of a job's state has beside tensors: how many steps were
// committed, and the notes, under the paths that their tensors have too.
func jobValues(s *snapshot.State) ([]format.Value, error) {
	d := json.NewDecoder(bytes.NewReader(s.Notes))
	d.UseNumber()
	n := notes{items: s.Items, values: []format.Value{{Path: "job/step", Data: int64(s.Step)}}}
	if s.Mesh != nil && n.items == nil {
		n.items = [][]byte{}
	}
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return nil, errors.Join(errors.New("no object"), err)
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, err
		}
		var note any
		if err := d.Decode(&note); err != nil {
			return nil, err
		}
		if err := n.addNested(name.(string), note, 0); err != nil {
			return nil, err
		}
	}
	return n.values, nil
}

// notes collects the values in notes. It does no I/O and is for one goroutine.
type notes struct {
	items  [][]byte // bytes of arrays, by number; nil = arrays are tensors of the checkpoint
	values []format.Value
}

// maxNesting bounds the depth of a note.
const maxNesting = 100

// addNested adds what is in a note, as encoding/json has decoded it, under a path; depth is the
// number of notes around it.
func (n *notes) addNested(path string, note any, depth int) error {
	if depth > maxNesting {
		return fmt.Errorf("%.200q is nested more than %d deep", path, maxNesting)
	}
	list, isList := note.([]any)
	kind, inner := unwrapEncoded(note)
	switch kind {
	case "item":
		return n.addArray(path, note.(map[string]any))
	case "dict":
		pairs, _ := inner.([]any)
		for _, x := range pairs {
			pair, ok := x.([]any)
			if !ok || len(pair) != 2 {
				return fmt.Errorf("%.200q has an item that is no key and value", path)
			}
			key, err := plainNote(pair[0], depth)
			if err != nil {
				return fmt.Errorf("%.200q: %w", path, err)
			}
			name := path + "/" + strings.ReplaceAll(fmt.Sprint(key.data), " ", ",")
			if err := n.addNested(name, pair[1], depth+1); err != nil {
				return err
			}
		}
		if len(pairs) == 0 {
			n.values = append(n.values, format.Value{Path: path, Data: map[string]any{}})
		}
		return nil
	case "tuple":
		list, isList = inner.([]any)
	}
	if isList && containsArrays(list, depth) {
		for i, x := range list {
			if err := n.addNested(path+"/"+strconv.Itoa(i), x, depth+1); err != nil {
				return err
			}
		}
		return nil
	}
	v, err := plainNote(note, depth)
	if err != nil {
		return fmt.Errorf("%.200q: %w", path, err)
	}
	value := format.Value{Path: path, Data: v.data}
	if v.python != nil {
		value.Python = v.python
	}
	n.values = append(n.values, value)
	return nil
}

// addArray adds the array that a note stands for, unless it is a tensor of the checkpoint.
func (n *notes) addArray(path string, note map[string]any) error {
	if n.items == nil {
		return nil
	}
	index, err := strconv.Atoi(fmt.Sprint(note["item"]))
	if err != nil || index < 0 || index >= len(n.items) {
		return fmt.Errorf("%.200q is array %v of %d", path, note["item"], len(n.items))
	}
	n.values = append(n.values, format.Value{Path: path, Data: n.items[index]})
	return nil
}

// unwrapEncoded returns the kind of a value that JSON lacks, and what is in it. Such a value is an
// object with the kind as its only key, "dict", "tuple", "bytes" or "float", which the caller
// checks, or one with a key "item". Of another object it is "unknown", and "" of what is none.
func unwrapEncoded(note any) (kind string, inner any) {
	m, ok := note.(map[string]any)
	if !ok {
		return "", nil
	}
	if item, is := m["item"]; is {
		return "item", item
	}
	for key, x := range m {
		if len(m) == 1 {
			return key, x
		}
	}
	return "unknown", nil
}

// containsArrays reports whether an array or a dict is in a list, or in lists in it; depth is the
// number of notes around it.
func containsArrays(list []any, depth int) bool {
	if depth > maxNesting {
		return false
	}
	for _, x := range list {
		kind, inner := unwrapEncoded(x)
		in, _ := x.([]any)
		if kind == "tuple" {
			in, _ = inner.([]any)
		}
		if kind == "item" || kind == "dict" || containsArrays(in, depth+1) {
			return true
		}
	}
	return false
}

// A plainValue is a value of a checkpoint without tensors in it, and as Python has it if that says
// more; else python is nil.
type plainValue struct{ data, python any }

// plainNote makes a value of a note in which there is no array and no dict; depth is the number of
// notes around it.
func plainNote(note any, depth int) (v plainValue, err error) {
	if depth > maxNesting {
		return v, fmt.Errorf("nested more than %d deep", maxNesting)
	}
	kind, inner := unwrapEncoded(note)
	text, isText := inner.(string)
	switch note := note.(type) {
	case nil, bool, string:
		return plainValue{data: note}, nil
	case json.Number:
		v.data, err = parsePythonNumber(note)
		return v, err
	case []any:
		return plainList(note, false, depth)
	}
	switch list, isList := inner.([]any); {
	case kind == "tuple" && isList:
		return plainList(list, true, depth)
	case kind == "bytes" && isText:
		v.data, err = base64.StdEncoding.Strict().DecodeString(text)
		return v, err
	case kind == "float" && isText && (text == "nan" || text == "inf" || text == "-inf"):
		v.data, err = strconv.ParseFloat(text, 64)
		return v, err
	}
	return v, fmt.Errorf("no note of a checkpoint: %.80v", note)
}

// plainList makes a value of the notes in a list or tuple, as plainNote does.
func plainList(notes []any, isTuple bool, depth int) (v plainValue, err error) {
	data, python, more := []any{}, []any{}, isTuple
	for _, x := range notes {
		item, err := plainNote(x, depth+1)
		if err != nil {
			return v, err
		}
		data = append(data, item.data)
		more = more || item.python != nil
		if item.python == nil {
			item.python = item.data
		}
		python = append(python, item.python)
	}
	v.data = data
	switch {
	case isTuple:
		v.python = pickle.Tuple(python)
	case more:
		v.python = &pickle.List{Items: python}
	}
	return v, nil
}

// parsePythonNumber returns a number of Python: an int64, or a *big.Int for a whole number beyond
// that, or a float64.
func parsePythonNumber(n json.Number) (any, error) {
	if strings.ContainsAny(n.String(), ".eE") {
		return n.Float64()
	}
	x, ok := new(big.Int).SetString(n.String(), 10)
	switch {
	case !ok || x.BitLen() > 8192:
		return nil, fmt.Errorf("no number: %.80s", n)
	case x.IsInt64():
		return x.Int64(), nil
	}
	return x, nil
}
