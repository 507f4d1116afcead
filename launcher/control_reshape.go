package launcher

import (
	"errors"
	"net/http"

	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/state/layout"
)

// answerReshape asks the head for another mesh, and sends the job as it is now, or sends what that
// mesh would cost (an api.Plan). It is an HTTP handler of the control socket, on a goroutine of its
// own, and waits for the engine's thread.
func (l *launcher) answerReshape(w http.ResponseWriter, r *http.Request) {
	var ask api.Reshape
	if !readControl(w, r, &ask, &ask.Who) {
		return
	}
	if ask.Mesh == "" {
		sendError(w, http.StatusBadRequest,
			errors.New("mesh: none is given; say which axes it has, such as dp=2,tp=2"))
		return
	}
	if _, err := layout.ParseMesh(ask.Mesh); err != nil {
		sendError(w, http.StatusBadRequest, err)
		return
	}
	var err error
	if ask.Plan {
		var plan api.Plan
		if plan, err = l.agent.PlanReshape(ask.Mesh); err == nil {
			sendJSON(w, plan)
			return
		}
	} else if err = l.agent.Reshape(ask.Mesh, ask.Who); err == nil {
		l.answerJob(w, r)
		return
	}
	sendError(w, http.StatusConflict, err)
}
