# The channel's memory is lost with its messages, and a reader begins with the empty board of the new memory.
{"seed":81050,"profile":"daemon","setup":{"channels":[{"name":"a.16-24.300","capacity":65536,"largest":8192,"strict":false,"shape":{"board":{"keys":300,"value":64},"gates":[]}}],"keeps":false}}
{"open":{"who":0,"channel":0,"anew":false,"full":false}}
{"publish":{"who":0,"count":1,"sizes":"line","sending":"marked","pause_us":0}}
{"close":{"who":0}}
{"crash":{"whom":"daemon"}}
{"attach":{"who":0,"channel":0,"start":"board","wait":"spin","conflate":null,"gate":null}}
{"read":{"who":0,"how":"mixed","ms":0,"rest_us":0}}
