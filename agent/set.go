package agent

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/shoal-ml/shoal/act"
	"github.com/shoal-ml/shoal/agent/loop"
	api "github.com/shoal-ml/shoal/api/worker"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/setting"
)

// Changes of how the job trains, for people, workers and the launcher. Any goroutine but the
// engine's thread may call the methods of Agent in this file.

// Set asks for another setting, such as "batch=512", on the head; elsewhere it returns
// head.ErrNotHead. The job has it when a step ends; Status tells. who asks is part of the reason
// that people read. It waits for the engine's thread and for policies that decide.
func (a *Agent) Set(text, who string) error {
	decides := a.loop.Decides()
	next, err := requestedSetting(a.Status().Setting, text, decides)
	if err != nil {
		return err
	}
	c := a.loop.Predict(next, who)
	c.Because, c.Why = who+" asked", ""
	return a.askHead(func() error {
		// what the text does not name stays as it is now: policies may have changed it meanwhile
		known := a.driver.head.State()
		now := loop.NewEntry(known, nil, true).Setting
		if next, err = requestedSetting(now, text, decides); err != nil {
			return err
		}
		if err := a.engine.signals.Levers(known).CheckSharesChange(now, next); err != nil &&
			known.Shape == nil { // the head says what else cannot change on a mesh
			return err
		}
		return a.driver.head.Change(next, c)
	})
}

// PlanSet returns the change that Set would ask for, with what is predicted of it, and changes
// nothing. It waits for the engine's thread and for policies that decide.
func (a *Agent) PlanSet(text, who string) (setting.Change, error) {
	s := a.Status()
	if s.Head != a.Host() {
		return setting.Change{}, head.ErrNotHead
	}
	next, err := requestedSetting(s.Setting, text, a.loop.Decides())
	if err == nil && s.Mesh == "" {
		err = s.Levers.CheckSharesChange(s.Setting, next)
	}
	if err == nil && !next.Equal(s.Setting) {
		err = a.askHead(func() error {
			return a.driver.head.CheckChange(next, setting.Change{Phase: setting.Entered, Who: who})
		})
	}
	if err != nil {
		return setting.Change{}, err
	}
	c := a.loop.Predict(next, who)
	c.From, c.To = s.Setting.DiffRequested(next)
	return c, nil
}

// requestedSetting returns the setting that a person asks for who sees the job train by now. Where
// no policies decide, as decides says, there is nothing that could be left to them, or kept from
// them. It is pure: on the engine's thread nothing may wait for policies, which wait for it.
func requestedSetting(now setting.Setting, text string, decides bool) (setting.Setting, error) {
	next, err := now.WithRequested(text)
	if err != nil || decides {
		return next, err
	}
	if name := setting.LeftPart(text); name != "" {
		return now, fmt.Errorf("%s=%s: this job has no policies, to which that could be left; "+
			"they decide in a job that is started by shoal run --auto", name, setting.Auto)
	}
	next.People = now.People
	return next, nil
}

// serveSetting answers how the job trains. It runs on the session's goroutine, and does not wait:
// the Status has the effects of every step whose end this worker has seen.
func (s *session) serveSetting() error {
	now := s.agent.Status().Setting
	return s.reply(&api.SettingReply{Number: now.Number, Rate: now.Rate, Save: now.Save,
		Sync: now.Sync, People: now.KeptPeople()})
}

// serveStay has the setting of the job go back to how workers synchronise; all workers tell the
// same. It runs on the session's goroutine, and does not wait.
func (s *session) serveStay(r *api.StayRequest) error {
	if err := (setting.Setting{Sync: r.Sync}).Validate(); err != nil || r.Sync == "" {
		return &collective.FieldError{Field: "sync",
			Problem: fmt.Sprintf("%q is no way to synchronise that the job has had", r.Sync)}
	}
	s.agent.loop.WorkersStayed(act.Stay{Number: r.Number, Sync: r.Sync, Why: r.Why})
	return nil
}

// stayMessage tells the head of workers that have kept their way to synchronise.
type stayMessage struct {
	Stay *act.Stay `json:"stay"` // nil = the message tells of something else
}

// TellHead implements loop.Job: the agent that leads gets a stayMessage. It does not wait.
func (a loopJob) TellHead(s act.Stay) {
	s.Why = setting.CutText(s.Why)
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // so that it is never longer than wire.MaxNote
	if err := e.Encode(stayMessage{&s}); err != nil {
		return
	}
	_ = a.engine.runLater(func() { // a stopped engine tells nobody
		a.driver.runStepInput(func() { a.driver.head.SendNote(b.Bytes()) })
	})
}

// takeStay gives the loop what another host has told of its workers, if data is that, and
// reports whether it is.
func (e *engine) takeStay(data []byte) bool {
	var m stayMessage
	if err := json.Unmarshal(data, &m); err != nil || m.Stay == nil {
		return false
	}
	if (setting.Setting{Sync: m.Stay.Sync}).Validate() == nil {
		e.stayed(*m.Stay)
	}
	return true
}

// reportSettingChange gives the launcher of every host an event about a change of the setting. It
// runs on the engine's thread.
func (d *driver) reportSettingChange(a *head.Apply) {
	e := Event{What: "change", Generation: d.generationNumber(a.View.Generation),
		Size: a.View.Size(), Step: a.Steps, OptimizerSteps: a.OptimizerSteps(),
		Because: a.Change.Because, Change: a.Change,
		Elsewhere: !d.head.Leads()}
	d.giveOrder(func(o *Orders) { o.Event(e) })
}
