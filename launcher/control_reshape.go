package launcher

import (
	"errors"
	"net/http"

	api "github.com/shoal-ml/shoal/api/control"
)

func (l *launcher) answerReshape(w http.ResponseWriter, r *http.Request) {
	var ask api.Reshape
	if err := readControl(w, r, &ask, &ask.Who); err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	if ask.Mesh == "" {
		refuse(w, http.StatusBadRequest,
			errors.New("mesh: none is given; say which axes it has, such as dp=2,tp=2"))
		return
	}
	var err error
	if ask.Plan {
		var plan api.Plan
		if plan, err = l.agent.PlanReshape(ask.Mesh); err == nil {
			answer(w, plan)
			return
		}
	} else if err = l.agent.Reshape(ask.Mesh, ask.Who); err == nil {
		l.answerJob(w, r)
		return
	}
	refuse(w, http.StatusConflict, err)
}
