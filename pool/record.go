package pool

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/decide/sched"
	"github.com/shoal-ml/shoal/internal/keyword"
)

// How a pool is kept in a store: docs/formats/pool.md has the form. Values have one form, as those
// of store/record: what is read is encoded once more, and refused if a byte differs. The functions
// and the methods of Machine that take what the keeper has read, and have values written, are for
// the goroutine that uses the Machine.

// version is that of docs/formats/pool.md.
const version = 1

// header begins every value.
type header struct {
	Kind    string `json:"shoal"`
	Version int    `json:"version"`
	Pool    string `json:"pool"`
}

// Values as the store has them.
type (
	poolValue struct {
		header
		Head
	}
	jobValue struct {
		header
		Job
	}
	hostValue struct {
		header
		Host
	}
	pastValue struct {
		header
		Past
	}
	memoryValue struct {
		header
		memory
	}
)

// Head says who leads a pool.
type Head struct {
	Host    string `json:"host"`
	Address string `json:"address"` // where its keeper listens; "" = nowhere
	Run     string `json:"run"`     // one start of a head, in random letters
	Since   int64  `json:"since"`   // when it began to lead
	Ended   int64  `json:"ended"`   // when it ended in order; 0 = it has not
	Policy  string `json:"policy"`
}

// memory is what the policy of a pool remembers of its decisions.
type memory struct {
	Policy string `json:"policy"`
	Memory []byte `json:"memory"`
}

// PoolKey returns the key of the head of a pool.
func PoolKey(pool string) string { return "pool." + keyword.Of(pool) }

// JobPrefix returns the words with which the keys of the jobs of a pool begin.
func JobPrefix(pool string) string { return "pooljob." + keyword.Of(pool) }

// JobKey returns the key of a job of a pool.
func JobKey(pool, job string) string { return JobPrefix(pool) + "." + keyword.Of(job) }

// HostPrefix returns the words with which the keys of the hosts of a pool begin.
func HostPrefix(pool string) string { return "poolhost." + keyword.Of(pool) }

// HostKey returns the key of a host of a pool.
func HostKey(pool, host string) string { return HostPrefix(pool) + "." + keyword.Of(host) }

// MemoryKey returns the key of what the policy of a pool remembers. It comes before those of jobs,
// so that it is written before what was decided by it.
func MemoryKey(pool string) string { return "poolcore." + keyword.Of(pool) }

// PastPrefix returns the words with which the keys of the kinds of jobs of a pool begin.
func PastPrefix(pool string) string { return "poolpast." + keyword.Of(pool) }

// PastKey returns the key of a kind of jobs.
func PastKey(pool, kind string) string { return PastPrefix(pool) + "." + keyword.Of(kind) }

// encode returns a value in its one form. A text that is no UTF-8, such as what a program says
// last, has that form once it is read: only then is each byte that is none a character.
func encode[T any](v T) []byte {
	text := encodeOnce(v)
	if bytes.Contains(text, []byte(`\ufffd`)) {
		var read T
		if err := json.Unmarshal(text, &read); err != nil {
			panic(err) // it was written just now
		}
		text = encodeOnce(read)
	}
	return text
}

// encodeOnce returns a value in the form of which that is made which is kept.
func encodeOnce(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err) // texts, numbers and maps of them
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// EncodeHead returns the head of a pool as it is written.
func EncodeHead(pool string, h Head) []byte {
	return encode(poolValue{header{"pool", version, pool}, h})
}

// encodeJob returns a job as it is written.
func encodeJob(pool string, j *Job) []byte {
	return encode(jobValue{header{"pooljob", version, pool}, *j})
}

// encodeHost returns a host as it is written.
func encodeHost(pool string, h *Host) []byte {
	return encode(hostValue{header{"poolhost", version, pool}, *h})
}

// encodePast returns what is known of a kind as it is written.
func encodePast(pool string, p *Past) []byte {
	return encode(pastValue{header{"poolpast", version, pool}, *p})
}

// encodeMemory returns what a policy remembers as it is written.
func encodeMemory(pool string, x memory) []byte {
	return encode(memoryValue{header{"poolcore", version, pool}, x})
}

// maxValue bounds what is read, as the store bounds what it takes.
const maxValue = 512 << 10

// decode reads a value of a kind into v; again returns it as it would be written, and the key under
// which it belongs.
func decode(pool, kind, key string, text []byte, v any, again func() ([]byte, string)) error {
	err := func() error {
		if len(text) > maxValue {
			return fmt.Errorf("%d bytes, more than %d", len(text), maxValue)
		}
		var h header
		if err := json.Unmarshal(text, &h); err != nil {
			return err
		}
		switch {
		case h.Kind != kind:
			return fmt.Errorf("it says that it is %.40q", h.Kind)
		case h.Version != version:
			return fmt.Errorf("it has version %d of the format, and this shoal reads version %d",
				h.Version, version)
		case h.Pool != pool:
			return fmt.Errorf("it is of the pool %.60q", h.Pool)
		}
		if err := json.Unmarshal(text, v); err != nil {
			return err
		}
		written, belongs := again()
		switch {
		case !bytes.Equal(written, text):
			return errors.New("it is not written as shoal writes it")
		case belongs != key:
			return fmt.Errorf("it belongs under %s", belongs)
		}
		return nil
	}()
	if err != nil {
		return badValue(kind, key, err)
	}
	return nil
}

// badValue returns the error that a key holds what is no value of its kind.
func badValue(kind, key string, err error) error {
	return fmt.Errorf("the store holds under %s what is no %s: %w; delete that key if nothing "+
		"else needs it", key, kind, err)
}

// DecodeHead reads the head of a pool.
func DecodeHead(pool string, text []byte) (Head, error) {
	var v poolValue
	err := decode(pool, "pool", PoolKey(pool), text, &v, func() ([]byte, string) {
		return EncodeHead(pool, v.Head), PoolKey(pool)
	})
	return v.Head, err
}

// decodeJob reads a job, and checks that the machine can go on with it.
func decodeJob(pool, key string, text []byte) (Job, error) {
	var v jobValue
	err := decode(pool, "pooljob", key, text, &v, func() ([]byte, string) {
		return encodeJob(pool, &v.Job), JobKey(pool, v.ID)
	})
	if err != nil {
		return Job{}, err
	}
	if err := v.Job.check(); err != nil {
		return Job{}, badValue("pooljob", key, err)
	}
	return v.Job, nil
}

// check returns what is wrong with a job that was read, with which the machine could not go on.
func (j *Job) check() error {
	s := j.Submission
	states := []State{Waiting, Starting, Running, Resizing, Parking, Parked, Stopping, Ended,
		Failed, Stopped}
	switch {
	case !slices.Contains(states, j.State):
		return fmt.Errorf("the job has the unknown state %.40q", j.State)
	case s.Min < 1 || s.Max < s.Min || s.Asked < s.Min || s.Asked > s.Max || s.Max > maxSlots:
		return errors.New("the job has sizes that cannot be")
	case !positive(j.Want) || !positive(j.Held) || !positive(j.Target):
		return errors.New("the job has slots that cannot be")
	case j.Parts == nil || j.Names == nil || j.Speeds == nil || j.Changes == nil:
		return errors.New("the job lacks a list")
	case j.Attempt < 0 || j.Parted < 0 || j.Fails < 0 || j.Asks < 0:
		return errors.New("the job has a number below 0")
	case !j.State.started() && j.Target.total() > 0:
		return fmt.Errorf("the job is %s and was given slots", j.State)
	case (j.State == Running || j.State == Resizing) && !j.Hurt && j.Target.total() < s.Min:
		return fmt.Errorf("the job is %s with fewer slots than its least", j.State)
	}
	for host, n := range j.Target {
		if j.Held[host] < n {
			return fmt.Errorf("the job was given %d slots on host %.60q and holds %d", n, host,
				j.Held[host])
		}
	}
	for host, n := range j.Parts {
		if n < 1 || n > j.Parted {
			return fmt.Errorf("the job has parts that cannot be: number %d on host %.60q", n, host)
		}
	}
	return checkSpeeds(j.Speeds)
}

// checkSpeeds returns what is wrong with measured speeds, by the number of workers.
func checkSpeeds(speeds map[int]float64) error {
	for n, v := range speeds {
		if n < 1 || n > maxSlots || v < 0 {
			return fmt.Errorf("speeds that cannot be: %g steps a second with %d workers", v, n)
		}
	}
	return nil
}

// check returns what is wrong with what was read of a kind of jobs.
func (p *Past) check() error {
	if p.Speeds == nil || p.Runs < 0 || p.Steps < 0 || p.Spread < 0 || p.Tail < 0 {
		return errors.New("a number is below 0, or there are no speeds")
	}
	for _, list := range [][]PastEnd{p.Ends, p.Halves} {
		for _, x := range list {
			if x.Part < leastPart || x.Part > mostPart || x.At < 0 || abs(x.Missed) > 1 {
				return fmt.Errorf("ends that cannot be: %+v", x)
			}
		}
		if list == nil || len(list) > maxEnds {
			return fmt.Errorf("%d ends, of which there are 0 to %d", len(list), maxEnds)
		}
	}
	return checkSpeeds(p.Speeds)
}

// maxSlots bounds the numbers of slots that are read.
const maxSlots = 1 << 20

// positive reports whether slots are there and all of them above 0.
func positive(s Slots) bool {
	for _, n := range s {
		if n < 1 || n > maxSlots {
			return false
		}
	}
	return s != nil
}

// restorePast takes what a store has of a kind of jobs.
func (m *Machine) restorePast(p *Past) {
	m.past[p.Kind] = p
	for when := range moments {
		for _, x := range *p.ends(when) {
			m.keepRecent(when, p.Kind, x)
		}
	}
}

// Restore returns the pool that a store has, by its keys; hosts are away until their keepers are
// linked. It decides as the head before it would have. Nothing is decided before the first call of
// Settle.
func Restore(cfg Config, now int64, values map[string][]byte) (*Machine, error) {
	m, err := New(cfg, now)
	if err != nil {
		return nil, err
	}
	keys := make([]string, 0, len(values))
	for key := range values {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	var list []*entry
	for _, key := range keys {
		text := values[key]
		switch {
		case strings.HasPrefix(key, JobPrefix(cfg.Name)+"."):
			var j Job
			if j, err = decodeJob(cfg.Name, key, text); err == nil {
				list = append(list, &entry{Job: j})
			}
		case strings.HasPrefix(key, HostPrefix(cfg.Name)+"."):
			err = m.restoreHost(key, text)
		case strings.HasPrefix(key, PastPrefix(cfg.Name)+"."):
			var v pastValue
			err = decode(cfg.Name, "poolpast", key, text, &v, func() ([]byte, string) {
				return encodePast(cfg.Name, &v.Past), PastKey(cfg.Name, v.Past.Kind)
			})
			if err == nil {
				if err = v.Past.check(); err != nil {
					err = badValue("poolpast", key, err)
				}
				m.restorePast(&v.Past)
			}
		case key == MemoryKey(cfg.Name):
			err = m.restoreMemory(text)
		}
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(list, bySubmission)
	for _, e := range list {
		if err := m.restoreJob(e); err != nil {
			return nil, badValue("pooljob", JobKey(cfg.Name, e.ID), err)
		}
	}
	slices.SortStableFunc(m.over, func(a, b string) int {
		return cmp.Compare(m.jobs[a].Over, m.jobs[b].Over)
	})
	m.dropOld()
	for _, h := range m.hosts {
		if !h.Forgot {
			m.coreHost(h)
		}
	}
	return m, nil
}

// restoreHost takes a host from the store.
func (m *Machine) restoreHost(key string, text []byte) error {
	var v hostValue
	err := decode(m.cfg.Name, "poolhost", key, text, &v, func() ([]byte, string) {
		return encodeHost(m.cfg.Name, &v.Host), HostKey(m.cfg.Name, v.Name)
	})
	if err != nil {
		return err
	}
	if v.Slots < 0 || v.Slots > maxSlots {
		return badValue("poolhost", key, fmt.Errorf("the host has %d slots", v.Slots))
	}
	h := v.Host
	h.Since = m.now
	m.hosts[h.Name] = &h
	return nil
}

// restoreJob takes a job from the store.
func (m *Machine) restoreJob(e *entry) error {
	e.init()
	e.version, e.written = 1, 1
	e.stored = []Write{{Version: 1, held: e.Held.clone()}}
	// what has ended by itself and what is lost, the head before may not have had time to write
	e.gone, e.alone, e.Lost = m.now, m.now, e.Lost || e.Hurt
	for host := range e.Parts { // an earlier head may have ordered it
		e.begun[host] = true
	}
	m.shares = m.shares || e.Share != nil && e.Share.Limit > 0
	m.jobs[e.ID] = e
	m.number = max(m.number, e.Number)
	for _, name := range []string{e.ID, e.Submission.Name} { // no other job gets them
		m.names[name] = max(m.names[name], 1)
	}
	if e.State.Over() {
		m.over = append(m.over, e.ID)
		if m.ending[e.ID] = true; e.Held.total() == 0 {
			delete(m.ending, e.ID)
		}
		return nil
	}
	e.Over = 0
	m.order = append(m.order, e.ID)
	if e.Awaits {
		m.awaits = append(m.awaits, e)
	}
	if e.isBusy() {
		m.addBusy(e)
	}
	if err := m.coreRestore(e); err != nil {
		return err
	}
	if !e.started() && e.Want.total() > 0 {
		m.waitAgain(e, e.Because) // it is decided anew
	}
	return nil
}

// restoreMemory takes what the policy remembered, if it is the one that decides now.
func (m *Machine) restoreMemory(text []byte) error {
	var v memoryValue
	err := decode(m.cfg.Name, "poolcore", MemoryKey(m.cfg.Name), text, &v, func() ([]byte, string) {
		return encodeMemory(m.cfg.Name, v.memory), MemoryKey(m.cfg.Name)
	})
	if err == nil && v.Policy == m.Policy() {
		m.memory = v.Memory
		m.core.SetMemory(v.Memory)
	}
	return err
}

// writeMemory has what the policy remembers written into the store, where that has changed. What is
// too much for the store is not kept.
func (m *Machine) writeMemory() {
	now := m.core.Memory()
	if bytes.Equal(now, m.memory) {
		return
	}
	m.memory = now
	text := encodeMemory(m.cfg.Name, memory{m.Policy(), now})
	if len(text) > maxValue {
		text = encodeMemory(m.cfg.Name, memory{Policy: m.Policy()})
	}
	m.writes[MemoryKey(m.cfg.Name)] = Write{Value: text}
}

// Policy returns the name of the policy that decides.
func (m *Machine) Policy() string { return cmp.Or(m.cfg.Policy, sched.Default) }
