package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/topo"
)

// How the record of a job is written as JSON, and read: docs/formats/record.md has the form. These
// functions do no I/O, and their arguments and results share no memory.

// version is that of docs/formats/record.md. A reader refuses any other.
const version = 1

// Kinds of values.
const (
	kindOwner      = "owner"
	kindGeneration = "generation"
)

// header begins every value, so that one from a newer shoal, or under the wrong key, is told from
// one that is damaged.
type header struct {
	Kind    string `json:"shoal"`
	Version int    `json:"version"`
}

// Owner says who leads a job, and is where an agent that knows the job's name finds it. Times are
// in seconds since 1970; 0 = none.
type Owner struct {
	header
	Job string `json:"job"`
	// Run is one start of the job, from its first head to its end.
	Run string `json:"run"`
	// Host is the host that leads.
	Host string `json:"host"`
	// Address is where the agent of that host listens; "" = nowhere.
	Address string `json:"address"`
	// Generation is the one with which the head began to lead; 0 = the job begins.
	Generation topo.Generation `json:"generation"`
	// Since is when the head began to lead, by its clock.
	Since int64 `json:"since"`
	// Ended is when the job ended.
	Ended int64 `json:"ended"`
}

// generationValue is a generation of a run, as the store holds it.
type generationValue struct {
	header
	Job    string       `json:"job"`
	Run    string       `json:"run"`
	Record *recordValue `json:"record"`
}

// recordValue is a member.Record in JSON.
type recordValue struct {
	Generation topo.Generation `json:"generation"`
	Head       string          `json:"head"`
	Since      topo.Generation `json:"since"`
	Members    []memberValue   `json:"members"`
	Hosts      []hostValue     `json:"hosts"`
	Want       int             `json:"want"`
	Min        int             `json:"min"`
	Max        int             `json:"max"`
	Spares     int             `json:"spares"`
	Next       topo.WorkerID   `json:"next"`
	Done       int             `json:"done"`
}

// memberValue is a topo.Member in JSON.
type memberValue struct {
	Worker topo.WorkerID `json:"worker"`
	Host   string        `json:"host"`
}

// hostValue is a member.Host in JSON.
type hostValue struct {
	Name     string `json:"name"`
	Slots    int    `json:"slots"`
	Draining bool   `json:"draining"`
	Kind     string `json:"kind,omitempty"`
}

// encode returns a value as JSON: the fields in the order of the types above, no space between
// them. It fails if the value does not pass its check.
func encode(v checker) ([]byte, error) {
	if err := v.check(); err != nil {
		return nil, fmt.Errorf("a record that cannot be written: %w", err)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// decode reads a value into v. It believes only what encode would have written, byte by byte: so
// nothing is doubled, left out, unknown or in another order.
func decode(key, kind string, data []byte, v checker) error {
	err := decodeValue(kind, data, v)
	if err == nil && v.key() != key {
		err = fmt.Errorf("it belongs under %s", v.key())
	}
	if err != nil {
		return fmt.Errorf("the store holds under %s what is no %s: %w; delete that key if "+
			"nothing else of the job needs it", key, kind, err)
	}
	return nil
}

// decodeValue is decode, with errors that name neither key nor kind.
func decodeValue(kind string, data []byte, v checker) error {
	if len(data) > MaxValue {
		return fmt.Errorf("%d bytes, more than %d", len(data), MaxValue)
	}
	var h header
	if err := json.Unmarshal(data, &h); err != nil {
		return err
	}
	switch {
	case h.Kind != kind:
		return fmt.Errorf("it says that it is %.40q", h.Kind)
	case h.Version != version:
		return fmt.Errorf("it has version %d of the format, and this shoal reads version %d",
			h.Version, version)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return err
	}
	again, err := encode(v)
	if err != nil {
		return err
	}
	if !bytes.Equal(again, data) {
		return errors.New("it is not written as shoal writes it")
	}
	return nil
}

// recordToValue returns a record in the form in which it is written.
func recordToValue(r member.Record) *recordValue {
	v := &recordValue{
		Generation: r.View.Generation, Head: r.Head, Since: r.Since,
		Members: make([]memberValue, 0, len(r.View.Members)),
		Hosts:   make([]hostValue, 0, len(r.Hosts)), Want: r.Want, Min: r.Min, Max: r.Max,
		Spares: r.Spares, Next: r.Next, Done: r.Done,
	}
	for _, m := range r.View.Members {
		v.Members = append(v.Members, memberValue(m))
	}
	for _, h := range r.Hosts {
		v.Hosts = append(v.Hosts, hostValue(h))
	}
	return v
}

// toRecord is the inverse of recordToValue: it returns a record with lists of its own.
func (v *recordValue) toRecord() member.Record {
	r := member.Record{View: topo.View{Generation: v.Generation}, Head: v.Head, Since: v.Since,
		Want: v.Want, Min: v.Min, Max: v.Max, Spares: v.Spares, Next: v.Next, Done: v.Done}
	for _, m := range v.Members {
		r.View.Members = append(r.View.Members, topo.Member(m))
	}
	for _, h := range v.Hosts {
		r.Hosts = append(r.Hosts, member.Host(h))
	}
	return r
}

// encode returns an owner as it is written.
func (o Owner) encode() ([]byte, error) {
	o.header = header{kindOwner, version}
	return encode(&o)
}

// DecodeOwner reads an owner, which a store holds under key.
func DecodeOwner(key string, data []byte) (Owner, error) {
	var o Owner
	if err := decode(key, kindOwner, data, &o); err != nil {
		return Owner{}, err
	}
	o.header = header{}
	return o, nil
}

// encodeGeneration returns a generation of a run as it is written.
func encodeGeneration(job, run string, r member.Record) ([]byte, error) {
	return encode(&generationValue{header{kindGeneration, version}, job, run, recordToValue(r)})
}

// DecodeGeneration reads a generation, which a store holds under key.
func DecodeGeneration(key string, data []byte) (member.Record, error) {
	var v generationValue
	if err := decode(key, kindGeneration, data, &v); err != nil {
		return member.Record{}, err
	}
	return v.Record.toRecord(), nil
}
